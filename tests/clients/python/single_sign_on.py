"""A person signs in at an OpenID Connect provider, in a real browser.

Arguments: the server's URL, the path of the page to open, the person's name, the text of the page to which the sign-in
leads, and texts of buttons and links to press there, one after the other. Prints the text of the last page, and saves
screenshots of the pages of the server in the folder LODE_SCREENSHOTS. axe-core is the file LODE_AXE.
"""

import os
import sys
import time

from browser import VIEWS, Browser

base, start, name, goal, *steps = sys.argv[1:]
browser = Browser(base, os.environ["LODE_SCREENSHOTS"], os.environ["LODE_AXE"])
browser.open(start)
browser.expect("Sign in with Corporate login")
browser.check("single-sign-on-login", VIEWS[:1])
browser.press("Sign in with Corporate login")
# The provider asks for a name and for consent; both pages are the provider's own.
browser.expect("Sign-in")
browser.fill(login=name, password="any")
browser.press("Sign-in")
browser.expect("Authorize")
browser.press("Continue")
browser.expect(goal)
browser.check("single-sign-on-after", VIEWS[:1])
for step in steps:
    browser.expect(step)
    browser.press(step)
    time.sleep(0.3)
if steps:
    browser.expect("")
    time.sleep(0.5)
print(browser.text())
browser.driver.quit()
assert not browser.found, "\n".join(browser.found)
