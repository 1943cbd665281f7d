"""Debian's Chromium on the pages of a server, with axe-core for their accessibility."""

import os
import time

from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By

RULES = ["wcag2a", "wcag2aa", "wcag21aa", "wcag22aa", "best-practice"]
# Colour schemes and widths in which a page is checked.
VIEWS = [("light", 1000), ("dark", 1000), ("light", 320)]
if os.environ.get("LODE_PAGE_VIEWS") == "all":
    VIEWS = [(scheme, width) for scheme in ["light", "dark"] for width in [1000, 1500, 320]]


class Browser:
    """A browser with scripts switched on or off. `found` lists the defects of the pages that were checked."""

    def __init__(self, base, folder, axe, scripts=True):
        options = Options()
        options.binary_location = "/usr/bin/chromium"
        for argument in ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]:
            options.add_argument(argument)
        if not scripts:
            setting = "profile.managed_default_content_settings.javascript"
            options.add_experimental_option("prefs", {setting: 2})
        self.driver = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
        with open(axe) as file:
            self.axe = file.read()
        self.base, self.folder, self.scripts, self.found = base, folder, scripts, []
        self.show(*VIEWS[0])

    def show(self, scheme, width):
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        size = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def open(self, path):
        self.driver.get(self.base + path)
        if self.scripts and (shift := self.layout_shift()) > 0.01:
            self.found.append(f"{path}: its parts move by {shift:.3f} while it loads")

    def layout_shift(self):
        """How far the page's parts have moved since it was loaded: the sum of the browser's layout shifts, 1 for the window."""
        return self.driver.execute_async_script("""
            const done = arguments[arguments.length - 1];
            let sum = 0;
            const add = entries => entries.forEach(entry => { sum += entry.hadRecentInput ? 0 : entry.value; });
            new PerformanceObserver(list => add(list.getEntries())).observe({type: "layout-shift", buffered: true});
            setTimeout(() => done(sum), 50);
        """)

    def fill(self, **fields):
        for name, text in fields.items():
            field = self.driver.find_element(By.CSS_SELECTOR, f"form [name={name}]:not([type=hidden])")
            field.clear()
            field.send_keys(text)

    def press(self, text):
        """Presses the first button whose text begins with this, else the first such link."""
        paths = [f"//{tag}[starts-with(normalize-space(.), '{text}')]" for tag in ["button", "a"]]
        found = [element for path in paths for element in self.driver.find_elements(By.XPATH, path)]
        assert found, f"no `{text}` to press at {self.driver.current_url}: {self.text()}"
        found[0].click()

    def text(self):
        try:
            return self.driver.find_element(By.TAG_NAME, "body").text
        except WebDriverException:  # the next page is loading
            return ""

    def expect(self, *texts):
        """Waits for one of the texts."""
        deadline = time.monotonic() + 30
        while not any(text in self.text() for text in texts):
            assert time.monotonic() < deadline, f"none of {texts} at {self.driver.current_url}: {self.text()}"
            time.sleep(0.05)

    def check(self, page, views=VIEWS):
        """Takes screenshots, and looks for defects: with axe-core, which needs scripts, or in the page's structure."""
        if not self.scripts:
            self.driver.save_screenshot(f"{self.folder}/{page}-no-scripts.png")
            self.found += [f"{page}: {defect}" for defect in self.structure()]
            return
        self.driver.execute_script(self.axe)
        for scheme, width in views:
            self.show(scheme, width)
            self.driver.save_screenshot(f"{self.folder}/{page}-{scheme}-{width}.png")
            self.found += [f"{page}, {scheme}, {width}: {defect}" for defect in self.violations()]
        self.show(*VIEWS[0])

    def violations(self):
        """What axe-core finds, and whether the page is too wide."""
        run = "axe.run(document, {runOnly: arguments[0]}).then(arguments[arguments.length - 1])"
        for violation in self.driver.execute_async_script(run, RULES)["violations"]:
            yield f"{violation['help']}: {[node['html'][:120] for node in violation['nodes']]}"
        overflow = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
        if self.driver.execute_script(overflow) > 0:
            yield "wider than the window"

    def structure(self):
        """What a page lacks for people with a keyboard or a screen reader."""
        elements = lambda selector: self.driver.find_elements(By.CSS_SELECTOR, selector)
        if not self.driver.title.endswith(" · Lode"):
            yield f"title `{self.driver.title}`"
        for selector in ["html[lang=en]", "main#content", "h1"]:
            if len(elements(selector)) != 1:
                yield f"{len(elements(selector))} of {selector}"
        levels = [int(heading.tag_name[1]) for heading in elements("h1, h2, h3, h4")]
        if any(level - previous > 1 for previous, level in zip([0] + levels, levels)):
            yield f"levels of headings {levels}"
        for control in elements("a, button, input:not([type=hidden]), select, [role=region]"):
            # What is folded away has no name.
            if control.is_displayed() and not control.accessible_name.strip():
                yield f"no name: {control.get_attribute('outerHTML')[:120]}"
        for field in elements("main input:not([type=hidden], .card input), main select"):
            if not elements(f"label[for='{field.get_attribute('id')}']"):
                yield f"no label: {field.get_attribute('outerHTML')[:120]}"
        for form in elements("form"):
            if not form.find_elements(By.TAG_NAME, "button"):
                yield f"no button: {form.get_attribute('outerHTML')[:120]}"
        for alert in elements(".problem"):
            if alert.get_attribute("role") != "alert":
                yield f"no alert: {alert.text}"
        for script in elements("script"):
            if "/static/lode." not in script.get_attribute("src"):
                yield f"a script: {script.get_attribute('outerHTML')[:120]}"
