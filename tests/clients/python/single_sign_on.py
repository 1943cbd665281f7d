"""A person signs in at an OpenID Connect provider, in Debian's Chromium.

Arguments: the page to open, the person's name, the text of the page to which the sign-in leads, and texts of buttons
and links to press there, one after the other. Prints the text of the last page, and saves a screenshot of each page
of the server in the folder LODE_SCREENSHOTS. axe-core (the file LODE_AXE) checks their accessibility.
"""

import os
import sys
import time

from selenium import webdriver
from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By

start, name, goal, *steps = sys.argv[1:]
RULES = ["wcag2a", "wcag2aa", "wcag21aa", "wcag22aa", "best-practice"]
with open(os.environ["LODE_AXE"]) as file:
    axe = file.read()
options = Options()
options.binary_location = "/usr/bin/chromium"
for argument in ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1000,1200"]:
    options.add_argument(argument)
driver = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))


def text():
    try:
        return driver.find_element(By.TAG_NAME, "body").text
    except (NoSuchElementException, StaleElementReferenceException):  # the next page is loading
        return ""


def expect(*wanted):
    """Waits for one of the texts; returns it."""
    deadline = time.monotonic() + 30
    while True:
        found = [part for part in wanted if part in text()]
        if found:
            return found[0]
        assert time.monotonic() < deadline, f"none of {wanted} at {driver.current_url}: {text()}"
        time.sleep(0.05)


def press(label):
    path = f"//*[self::a or self::button][starts-with(normalize-space(.), '{label}')]"
    driver.find_element(By.XPATH, path).click()


def check(page):
    """Takes a screenshot, and fails for violations that axe-core finds."""
    driver.save_screenshot(f"{os.environ['LODE_SCREENSHOTS']}/single-sign-on-{page}.png")
    driver.execute_script(axe)
    run = "axe.run(document, {runOnly: arguments[0]}).then(arguments[arguments.length - 1])"
    violations = driver.execute_async_script(run, RULES)["violations"]
    assert not violations, [(v["help"], [n["html"][:120] for n in v["nodes"]]) for v in violations]


driver.get(start)
expect("Sign in with Corporate login")
check("login")
press("Sign in with Corporate login")
# The provider asks for a name and for consent; both pages are the provider's own.
expect("Sign-in")
driver.find_element(By.NAME, "login").send_keys(name)
driver.find_element(By.NAME, "password").send_keys("any")
press("Sign-in")
expect("Authorize")
press("Continue")
expect(goal)
check("after")
for number, step in enumerate(steps):
    expect(step)
    press(step)
    time.sleep(0.3)
if steps:
    expect("")
    time.sleep(0.5)
print(text())
driver.quit()
