"""Tests the pages in a real browser: Debian's Chromium, with axe-core for their accessibility.

Arguments: the server's URL, the setup link's path, the file axe.min.js, and a folder for screenshots. The server
waits for its administrator.
"""

import sys
import time

from selenium import webdriver
from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By

base, setup, axe, folder = sys.argv[1:]
with open(axe) as file:
    axe = file.read()
RULES = ["wcag2a", "wcag2aa", "wcag21aa", "wcag22aa", "best-practice"]
PASSWORD = "a long password"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAID+J+sdSDaSdFp8SzO/s//NDYG1US57bEJgqMS0SLHRO alice@laptop"
found = []


class Browser:
    """A browser with a colour scheme, a width, and scripts switched on or off."""

    def __init__(self, scheme, width, scripts=True):
        options = Options()
        options.binary_location = "/usr/bin/chromium"
        for argument in ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]:
            options.add_argument(argument)
        options.add_argument(f"--window-size={width},1400")
        if not scripts:
            setting = "profile.managed_default_content_settings.javascript"
            options.add_experimental_option("prefs", {setting: 2})
        self.driver = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        self.name = f"{scheme}-{width}"
        self.scripts = scripts

    def open(self, path):
        self.driver.get(base + path)

    def fill(self, **fields):
        for name, text in fields.items():
            field = self.driver.find_element(By.CSS_SELECTOR, f"main [name={name}]")
            field.clear()
            field.send_keys(text)

    def press(self, text):
        self.driver.find_element(By.XPATH, f"//button[starts-with(normalize-space(.), '{text}')]").click()

    def text(self):
        try:
            return self.driver.find_element(By.TAG_NAME, "body").text
        except (NoSuchElementException, StaleElementReferenceException):  # the next page is loading
            return ""

    def expect(self, text):
        deadline = time.monotonic() + 30
        while text not in self.text():
            assert time.monotonic() < deadline, f"no `{text}` at {self.driver.current_url}: {self.text()}"
            time.sleep(0.05)

    def check(self, page):
        """Takes a screenshot, and lists the violations that axe-core finds."""
        self.driver.save_screenshot(f"{folder}/{page}-{self.name}.png")
        if not self.scripts:
            return
        self.driver.execute_script(axe)
        run = "axe.run(document, {runOnly: arguments[0]}).then(arguments[arguments.length - 1])"
        for violation in self.driver.execute_async_script(run, RULES)["violations"]:
            nodes = [node["html"][:120] for node in violation["nodes"]]
            found.append(f"{page}, {self.name}: {violation['help']}: {nodes}")
        overflow = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
        if self.driver.execute_script(overflow) > 0:
            found.append(f"{page}, {self.name}: wider than the window")


def sign_in(browser):
    browser.open("/login")
    browser.check("login")
    browser.fill(name="admin", password="wrong")
    browser.press("Sign in")
    browser.expect("rong user name or password")
    browser.check("login-wrong")
    browser.fill(password=PASSWORD)
    browser.press("Sign in")
    browser.expect("Keys of ollama")


def manage(browser):
    browser.fill(name=f"laptop {browser.name}")
    browser.press("Create a token")
    browser.expect("shown only once")
    browser.check("token")
    browser.fill(key=KEY)
    browser.press("Add the key")
    browser.expect("SHA256:dx63Q/qfhRQUtEIsj8/PHIv1/t5y0uQwgnaZvn8aWYg")
    browser.check("account")
    browser.press("Remove")
    browser.expect("You have no keys.")
    browser.press("Revoke")
    browser.expect("revoked")
    browser.open("/device?user_code=BCDF-GHJK")
    browser.expect("code is wrong or has expired")
    browser.check("device")
    browser.open("/")
    browser.check("home")
    browser.press("Sign out")
    browser.open("/-/account")
    browser.expect("User name")


# 1. The first minute, in a browser without scripts.
first = Browser("light", 1000, scripts=False)
first.open(setup)
first.check("setup")
first.fill(name="admin", password=PASSWORD)
first.press("Create the administrator")
first.expect("Server role: admin")
manage(first)
first.driver.quit()
# 2. Every page, light and dark, wide and narrow.
for scheme, width in [("light", 1000), ("dark", 1000), ("light", 320)]:
    browser = Browser(scheme, width)
    sign_in(browser)
    manage(browser)
    browser.driver.quit()
assert not found, "\n".join(found)
