"""Uses the pages of a server in a real browser, as a person does, and checks each page.

Arguments: the server's URL, the setup link's path, the URL of a server without accounts, the server's SQLite
database, the file axe.min.js, a folder for screenshots, and whether the browser runs scripts: `scripts` or `none`.
The server waits for its administrator.
"""

import base64
import hashlib
import json
import sqlite3
import sys
import urllib.parse
import urllib.request

from browser import VIEWS, Browser
from selenium.webdriver.common.by import By

base, setup, without_accounts, database, axe, folder, scripts = sys.argv[1:]
PASSWORD = "a long password"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAID+J+sdSDaSdFp8SzO/s//NDYG1US57bEJgqMS0SLHRO"
FINGERPRINT = "SHA256:dx63Q/qfhRQUtEIsj8/PHIv1/t5y0uQwgnaZvn8aWYg"
EXPIRED = "the code is wrong or has expired; start the sign-in again"
browser = Browser(base, folder, axe, scripts == "scripts")
# Error pages share one template.
ONE_VIEW = VIEWS[:1]


def change_database(statement):
    """Lets time pass for the server."""
    with sqlite3.connect(database, timeout=30) as connection:
        assert connection.execute(statement).rowcount > 0, statement


def device_code():
    """Begins a sign-in of a program; returns the code that the person enters."""
    body = urllib.parse.urlencode({"client_id": "lode", "client_name": "lode on laptop"}).encode()
    with urllib.request.urlopen(f"{base}/hf/oauth/device", body) as response:
        return json.load(response)["user_code"]


def sign_in():
    browser.fill(name="admin", password=PASSWORD)
    browser.press("Sign in")


def check_scripts():
    """Fails unless the browser's setting has an effect."""
    browser.driver.get("data:text/html,<p>none</p><script>document.querySelector('p').textContent = 'scripts'</script>")
    browser.expect(scripts)


def set_up():
    browser.open("/")
    browser.expect("this server is not set up yet; its administrator has to open the setup link in the server's log")
    browser.check("not-set-up")
    browser.open("/setup?token=wrong")
    browser.expect("the setup link is wrong or has expired; restart the server for a new one")
    browser.check("setup-link-wrong")
    browser.open(setup)
    browser.check("setup")
    browser.fill(name="Not a name", password=PASSWORD)
    browser.press("Create the administrator")
    browser.expect("Not a name")
    browser.check("setup-problem")
    browser.fill(name="admin", password=PASSWORD)
    browser.press("Create the administrator")
    browser.expect("Server role: admin")
    browser.check("account-new")
    browser.open(setup)
    browser.expect("the setup link is wrong or has expired")
    browser.open("/")
    browser.press("Sign out")
    browser.expect("User name")


def wrong_sign_in():
    browser.open("/login")
    browser.check("login")
    browser.fill(name="admin", password="wrong")
    browser.press("Sign in")
    browser.expect("wrong user name or password")
    browser.check("login-wrong")
    sign_in()
    browser.expect("Keys of ollama")


def manage_tokens_and_keys():
    browser.fill(name="laptop")
    browser.press("Create a token")
    browser.expect("shown only once")
    browser.check("token")
    browser.fill(key=f"{KEY} alice@laptop")
    browser.press("Add the key")
    browser.expect(FINGERPRINT)
    browser.check("account")
    browser.press("Remove")
    browser.expect("Remove the key alice@laptop?")
    browser.check("account-confirm")
    browser.press("Remove the key")
    browser.expect("You have no keys.")
    browser.press("Revoke")
    browser.expect("Revoke the token laptop?")
    browser.press("Revoke the token")
    browser.expect("revoked")
    browser.open("/")
    browser.check("home")


def push_notes(name="admin", password=PASSWORD):
    """Pushes an artifact as an account, by default as the administrator; returns its repository."""
    credentials = base64.b64encode(f"{name}:{password}".encode()).decode()

    def send(method, path, body, kind):
        headers = {"Authorization": f"Basic {credentials}", "Content-Type": kind}
        urllib.request.urlopen(urllib.request.Request(base + path, body, headers, method=method)).close()
        return f"sha256:{hashlib.sha256(body).hexdigest()}"

    empty, kind = b"{}", "application/vnd.oci.image.manifest.v1+json"
    digest = f"sha256:{hashlib.sha256(empty).hexdigest()}"
    send("POST", f"/v2/team/notes/blobs/uploads/?digest={digest}", empty, "application/octet-stream")
    layer = {"mediaType": "application/vnd.oci.empty.v1+json", "digest": digest, "size": 2}
    manifest = {"schemaVersion": 2, "mediaType": kind, "artifactType": "text/notes", "config": layer, "layers": [layer]}
    send("PUT", "/v2/team/notes/manifests/v1", json.dumps(manifest).encode(), kind)
    return "team/notes"


def manage_repositories_and_the_server():
    browser.open(f"/{push_notes()}")
    browser.press("Settings")
    browser.expect("No account has a role here.")
    browser.check("settings-new")
    browser.fill(subject="nobody")
    browser.press("Grant the role")
    browser.expect("no account or group is called `nobody`")
    browser.check("settings-problem")
    browser.fill(subject="admin")
    browser.press("Grant the role")
    browser.expect("this repository")
    browser.check("settings")
    browser.fill(subject="anyone")
    browser.press("Grant the role")
    browser.expect("Make team/notes public?")
    browser.check("settings-public")
    browser.press("Cancel")
    browser.expect("this repository")
    browser.press("Remove")
    browser.expect("Remove admin from team/notes?")
    browser.check("settings-remove")
    browser.press("Remove the role")
    browser.expect("No account has a role here.")
    browser.press("Rules")
    browser.expect("No retention rule applies here")
    browser.check("rules-new")
    browser.fill(patterns="[")
    browser.press("Save the patterns")
    browser.expect("is not a pattern of tags")
    browser.check("rules-problem")
    browser.fill(patterns="v*")
    browser.press("Save the patterns")
    browser.expect("Patterns of this repository")
    browser.check("rules")
    browser.press("Tags")
    browser.expect("A rule protects it")
    browser.check("tags-protected")
    browser.press("Rules")
    browser.fill(patterns="")
    browser.press("Save the patterns")
    browser.expect("Saved")
    browser.press("Tags")
    browser.press("Delete")
    browser.expect("Delete the tag v1?")
    browser.check("tags-confirm")
    browser.press("Delete the tag")
    browser.expect("The tag v1 is deleted.")
    browser.check("tags-deleted")
    browser.press("Its history")
    browser.press("Move the tag back")
    browser.expect("new tag")
    browser.open("/team/notes/-/card?of=repository")
    browser.fill(text="---\nlicense: [mit\ntags: x\n---\n# Notes")
    browser.press("Preview")
    browser.expect("of the card is not valid YAML")
    browser.check("card-problem")
    browser.press("Server")
    browser.expect("Free for data")
    browser.check("server")
    browser.open("/")


def unfold(text):
    browser.driver.find_element(By.XPATH, f"//summary[starts-with(normalize-space(.), '{text}')]").click()


def manage_robots():
    browser.open("/team/notes/-/settings")
    browser.press("page of the namespace team")
    browser.expect("There are no robots.")
    browser.fill(subject="admin")
    browser.press("Grant the role")
    browser.expect("Saved the roles.")
    browser.check("namespace")
    browser.press("Remove")
    browser.expect("Remove admin from team/*?")
    browser.check("namespace-confirm")
    browser.press("Remove the role")
    browser.expect("No account has a role here.")
    browser.fill(name="Not a name")
    browser.press("Create a robot")
    browser.expect("expected lower-case letters and digits")
    browser.check("namespace-problem")
    browser.fill(name="ci")
    browser.press("Create a robot")
    browser.expect("The robot has no role yet")
    browser.fill(name="nightly")
    browser.press("Create a token")
    browser.expect("shown only once")
    secret = browser.driver.find_element(By.CLASS_NAME, "secret").text
    browser.check("robot-token", ONE_VIEW)
    browser.press("Grant the role")
    browser.expect("the role on team/*")
    push_notes("team+ci", secret)
    unfold("Add: GitHub Actions")
    browser.fill(repository="octo-org/octo-repo", workflow="publish.yml", claims="nonsense")
    browser.press("Add the publisher")
    browser.expect("`nonsense` is not a claim")
    browser.check("robot-problem")
    browser.fill(claims="ref=refs/heads/main")
    browser.press("Add the publisher")
    browser.expect("workflow=publish.yml")
    browser.press("Revoke")
    browser.expect("Revoke the token nightly?")
    browser.check("robot-confirm")
    browser.press("Revoke the token")
    browser.expect("revoked")
    unfold("Delete team+ci")
    browser.fill(confirm="team+ci")
    browser.press("Delete the robot")
    browser.expect("There are no robots.")


def delete_repository():
    browser.open("/team/notes/-/settings")
    unfold("Delete team/notes")
    browser.fill(confirm="notes")
    browser.press("Delete the repository")
    browser.expect("has to be the repository's name, `team/notes`")
    browser.check("settings-delete")
    browser.fill(confirm="team/notes")
    browser.press("Delete the repository")
    browser.expect("Nothing fits.")
    browser.open("/")


def manage_quotas_and_find_accounts():
    browser.press("Quotas")
    browser.expect("No namespace has a quota.")
    browser.fill(limit="much")
    browser.press("Set the quota")
    browser.expect("`much` is not a size")
    browser.fill(limit="1GiB")
    browser.press("Set the quota")
    browser.expect("1GiB")
    browser.check("quotas")
    browser.press("team")
    browser.expect("Robots")
    browser.press("Server")
    browser.expect("Free for data")
    browser.press("Accounts")
    browser.expect("Name begins with")
    browser.check("accounts", ONE_VIEW)
    browser.fill(name="nobody")
    browser.press("Find")
    browser.expect("No account has a name that begins with nobody")


def see_deletions_audit_and_connections():
    browser.press("Deletions")
    browser.expect("Deleted before")
    browser.check("deletions")
    browser.press("Show what is due")
    browser.expect("It is", "A collection would delete")
    browser.press("Collect now")
    browser.expect("Delete what is due?")
    browser.check("deletions-confirm", ONE_VIEW)
    browser.press("Cancel")
    browser.press("Audit log")
    browser.expect("Changes, and requests that were refused")
    browser.check("audit")
    browser.fill(actor="user:nobody")
    browser.press("Find")
    browser.expect("No record fits.")
    browser.press("Connections")
    browser.expect("No registry is mirrored.")
    browser.check("connections")


def as_administrator(method, path, body):
    """Sends a request of the administrator to Lode's API."""
    credentials = base64.b64encode(f"admin:{PASSWORD}".encode()).decode()
    headers = {"Authorization": f"Basic {credentials}", "Content-Type": "application/json"}
    data = json.dumps(body).encode()
    urllib.request.urlopen(urllib.request.Request(base + path, data, headers, method=method)).close()


def see_what_a_role_may():
    """The pages of a repository without an account, and as a reader, a writer, a maintainer and an owner."""
    people = {"rita": "read", "will": "write", "mia": "maintain", "olga": "own"}
    for name, role in people.items():
        as_administrator("POST", "/lode/v1/accounts", {"name": name, "password": PASSWORD})
        as_administrator("PUT", "/lode/v1/grants", {"target": "team/*", "subject": name, "role": role})
    browser.press("Sign out")
    browser.expect("User name")
    browser.open("/team/notes")
    browser.expect("Page not found")
    browser.check("hidden", ONE_VIEW)
    browser.open("/-/admin/audit")
    browser.expect("User name")
    for name, role in people.items():
        browser.open("/login")
        browser.fill(name=name, password=PASSWORD)
        browser.press("Sign in")
        browser.expect("Keys of ollama")
        browser.open("/team/notes?tag=v1")
        browser.expect("Facts")
        tabs = {tab.text for tab in browser.driver.find_elements(By.CSS_SELECTOR, "nav.tabs a")}
        managed = {"maintain": {"Rules"}, "own": {"Rules", "Settings"}}.get(role, set())
        assert tabs & {"Rules", "Settings"} == managed, (role, tabs)
        edits = any(text in browser.text() for text in ["Write a card", "Edit card"])
        assert edits == (role != "read"), (role, browser.text())
        browser.check(f"role-{role}", ONE_VIEW)
        if role == "read":
            browser.press("Tags")
            browser.expect("History of the tags")
            assert "Delete" not in browser.text(), browser.text()
            browser.open("/-/admin/audit")
            browser.expect("Forbidden")
            browser.check("forbidden", ONE_VIEW)
        elif role == "write":
            browser.press("Write a card")
            browser.fill(text="# What the team noted")
            browser.press("Save")
            browser.expect("What the team noted")
        elif role == "maintain":
            browser.expect("What the team noted")
            browser.press("Rules")
            browser.expect("No retention rule applies here")
        else:
            browser.press("Settings")
            browser.expect("Delete team/notes")
        browser.press("Sign out")
        browser.expect("User name")
    browser.open("/login")
    sign_in()
    browser.expect("Keys of ollama")


def connect_ollama():
    key = base64.urlsafe_b64encode(KEY.encode()).decode().rstrip("=")
    browser.press("Sign out")
    browser.expect("User name")
    browser.open(f"/connect?name=laptop&key={key}")
    browser.expect("User name")
    sign_in()
    browser.expect(FINGERPRINT)
    browser.check("connect")
    browser.press("Add the key")
    browser.expect(f"The key {FINGERPRINT} is yours now. Repeat the command of ollama.")
    browser.check("connect-done")
    browser.open("/connect?name=laptop&key=damaged")
    browser.expect("expected an ed25519 public key")
    browser.check("connect-damaged", ONE_VIEW)


def allow_devices():
    browser.open("/device")
    browser.check("device")
    browser.fill(user_code=device_code())
    browser.press("Continue")
    browser.expect("A program wants to sign in as admin")
    browser.check("device-request")
    browser.press("Allow")
    browser.expect("The program is signed in.")
    browser.check("device-allowed")
    browser.open(f"/device?user_code={device_code()}")
    browser.press("Deny")
    browser.expect("The program is not signed in.")
    browser.check("device-denied", ONE_VIEW)
    # A code that expires before the page is opened, and one that expires while it is open.
    code = device_code()
    change_database("update device_logins set created_at = 0")
    browser.open(f"/device?user_code={code}")
    browser.expect(EXPIRED)
    browser.check("device-expired")
    browser.open(f"/device?user_code={device_code()}")
    change_database("update device_logins set created_at = 0")
    browser.press("Allow")
    browser.expect(EXPIRED)
    browser.check("device-late")
    browser.press("Enter another code")
    browser.expect("The program shows it")


def meet_errors():
    browser.open("/nothing")
    browser.expect("there is no such page here, or you may not see it")
    browser.check("not-found")
    browser.press("Go to the start page")
    browser.expect("an OCI model registry and inference server")
    browser.open("/logout")
    browser.expect("Method Not Allowed")
    browser.check("method", ONE_VIEW)
    # A form from before another sign-in.
    browser.open("/-/account")
    browser.fill(name="late")
    first = browser.driver.current_window_handle
    browser.driver.switch_to.new_window("tab")
    browser.open("/")
    browser.press("Sign out")
    browser.expect("User name")
    sign_in()
    browser.expect("Keys of ollama")
    browser.driver.close()
    browser.driver.switch_to.window(first)
    browser.press("Create a token")
    browser.expect("the form has expired; go back, reload the page and send it again")
    browser.check("form-old")
    # A session that is too old for a change.
    change_database("update sessions set fresh_at = 0")
    browser.open("/-/account")
    browser.fill(name="late")
    browser.press("Create a token")
    browser.expect("this needs a recent sign-in; sign in again")
    browser.check("session-old")
    browser.press("Sign in again")
    browser.expect("User name")
    browser.check("login-again", ONE_VIEW)
    sign_in()
    browser.expect("Keys of ollama")
    # A server without accounts.
    browser.base = without_accounts
    browser.open("/login")
    browser.expect("This server has no accounts: every client may do everything.")
    browser.check("no-accounts")


def browse_models():
    """The pages about models, on the server without accounts."""
    browser.open("/")
    browser.expect("Newest models")
    browser.check("hub-home")
    browser.open("/-/api")
    browser.expect("HTTP API")
    for operation in ["createToken", "compareModels", "showStatus"]:
        browser.driver.find_element(By.CSS_SELECTOR, f"#{operation} > summary").click()
    browser.expect("Unknown fields are refused.")
    browser.check("hub-api")
    browser.open("/models?format=safetensors")
    browser.expect("team/mini")
    browser.check("hub-models")
    browser.open("/models?q=zzz")
    browser.expect("Nothing fits.")
    browser.check("hub-no-models", ONE_VIEW)
    browser.open("/models")
    if browser.scripts:
        # Results come while typing, and the address follows.
        browser.fill(q="zzz")
        browser.expect("Nothing fits.")
        assert browser.driver.current_url.endswith("q=zzz"), browser.driver.current_url
        browser.open("/models")
    browser.press("team/mini")
    browser.expect("Use it")
    browser.check("hub-model")
    for tab, text in [("Files", "tokenizer.json"), ("Tensors", "model.layers.0..3"), ("Tags", "Compare two tags"),
                      ("Lineage", "Made from"), ("Referrers", "Nothing refers to this manifest.")]:
        browser.press(tab)
        browser.expect(text)
        browser.check(f"hub-{tab.lower()}")
    browser.press("Try")
    browser.expect("Message")
    browser.check("hub-try")
    for message in ["What is a lode?", "And a registry?"]:
        browser.fill(message=message, temperature="0", tokens="16")
        browser.press("Send")
        browser.expect("per second")
        # While a response is generated, the button stops it.
        browser.expect("Send")
        browser.expect(message)
    browser.check("hub-conversation")
    browser.press("Continue a text instead")
    browser.fill(message="In the beginning", tokens="16")
    browser.press("Continue")
    browser.expect("per second")
    browser.press("Tags")
    browser.press("Compare")
    browser.expect("stored as the same bytes")
    browser.check("hub-diff")
    browser.open("/team/mini")
    browser.press("Edit card")
    parts = ["---\nlicense: mit\n---\n# A new card", "It is *short*.", "```python\nprint(1)  # one\n```", r"$$\frac{1}{n}$$"]
    browser.fill(text="\n\n".join(parts))
    browser.press("Preview")
    browser.expect("Preview, not saved yet")
    browser.check("hub-card")
    browser.press("Save")
    browser.expect("Use it")
    browser.expect("It is short.")
    browser.press("Quantise it")
    browser.expect("Name of the new model")
    browser.check("hub-quantise")
    browser.fill(to="team/mini:small")
    browser.driver.find_element(By.XPATH, "//option[.='Q8_0']").click()
    browser.press("Quantise")
    browser.expect("New model")
    while "succeeded" not in browser.text():
        browser.press("Show the state again")
        browser.expect("New model")
    browser.check("hub-quantised")
    browser.press("team/mini:small")
    browser.expect("Q8_0")


check_scripts()
set_up()
wrong_sign_in()
manage_tokens_and_keys()
manage_repositories_and_the_server()
manage_robots()
manage_quotas_and_find_accounts()
see_deletions_audit_and_connections()
see_what_a_role_may()
delete_repository()
connect_ollama()
allow_devices()
meet_errors()
browse_models()
browser.driver.quit()
assert not browser.found, "\n".join(browser.found)
