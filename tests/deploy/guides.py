"""Runs the examples of the guides against a server."""

import os
import pathlib
import re
import socket
import subprocess
import urllib.error
import urllib.request

from checks import ROOT, need, run, wait_until

ADDRESS = "127.0.0.1:5000"  # as in the guides
PASSWORD = "an administrator's password"


def blocks(page, language):
    """The code of a page of the guide in a language."""
    found = re.findall(rf"^```{language}\n(.*?)^```", (ROOT / "docs/guide" / page).read_text(), re.M | re.S)
    assert found, f"{page} has no {language}"
    return found


class Server:
    """A server on a free port, in whose place the examples name port 5000."""

    def __init__(self, scratch, *options, **variables):
        self.folder = pathlib.Path(scratch)
        self.program = need("LODE_BIN", "lode")
        self.address = f"127.0.0.1:{free_port()}"
        kept = {name: os.environ[name] for name in ("PATH", "TMPDIR") if name in os.environ}
        self.variables = {**kept, "HOME": scratch, "LODE_HOST": f"http://{self.address}"}
        command = [self.program, "serve", "--listen", self.address, "--data", str(self.folder / "data"), *options]
        self.log = open(self.folder / "log", "w")
        self.process = subprocess.Popen(command, env={**self.variables, **variables}, stdout=self.log, stderr=self.log)

    def __enter__(self):
        wait_until(f"{self.folder / 'log'} says that the server is ready", self.is_ready)
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(timeout=60)
        self.log.close()

    def is_ready(self):
        assert self.process.poll() is None, (self.folder / "log").read_text()
        try:
            with urllib.request.urlopen(f"http://{self.address}/readyz", timeout=5) as response:
                return response.status == 200
        except (urllib.error.URLError, OSError):
            return False

    def lode(self, *arguments, **options):
        return run([self.program, *arguments], env=self.variables, **options)

    def here(self, code):
        return code.replace(ADDRESS, self.address)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def demo_server(scratch):
    return Server(scratch, "--demo")


def check_applications_in_python(scratch):
    python = need("LODE_PYTHON", "Python with openai and ollama")
    with demo_server(scratch) as server:
        for code in blocks("sdk.md", "python"):
            printed = run([python, "-c", server.here(code)], env=server.variables)
            assert printed.startswith("81.\n") and "liquid" in printed, printed


def check_curl(scratch):
    with demo_server(scratch) as server:
        for code in blocks("sdk.md", "sh"):
            printed = run(["sh", "-euc", server.here(code)], env=server.variables)
            assert "81." in printed and "liquid" in printed, printed


def check_a_pipeline(scratch):
    with Server(scratch, "--no-worker", LODE_ADMIN_PASSWORD=PASSWORD) as server:
        server.lode("login", "--username", "admin", "--password-stdin", input=PASSWORD)
        server.lode("robot", "add", "team+ci")
        server.lode("grant", "add", "team+ci", "write", "team/app")
        created = server.lode("token", "create", "ci", "--account", "team+ci", "--json")
        secret = re.search(r'"secret":"([^"]+)"', created)[1]
        programs = server.folder / "bin"
        programs.mkdir()
        (programs / "lode").symlink_to(server.program)
        home = server.folder / "job"
        home.mkdir()
        variables = {
            **server.variables, "HOME": str(home), "PATH": f"{programs}:{server.variables['PATH']}",
            "LODE_TOKEN": secret, "REVISION": "r1", "CHECKPOINT": str(ROOT / "tests/models/lode-demo"),
        }
        for code in blocks("ci.md", "sh"):
            run(["sh", "-euc", code], env=variables, cwd=home)
        # Both tags name the same manifest, and the robot's rights end at its repository.
        tags = [server.lode("show", f"team/app:{tag}", "--json") for tag in ("r1", "stable")]
        digests = {re.search(r'"digest":"([^"]+)"', tag)[1] for tag in tags}
        assert len(digests) == 1, digests
        other = subprocess.run([server.program, "cp", "team/app:r1", "team/other:r1"], env=variables, capture_output=True, text=True)
        assert other.returncode == 1 and "team/other" in other.stderr, other.stderr


def check_the_reference_has_every_route():
    """The table of routes in the registry's tests is itself compared with the router."""
    table = (ROOT / "registry/src/tests/routes.rs").read_text()
    routes = set(re.findall(r'\(\s*"(GET|POST|PUT|PATCH|DELETE)",\s*"(/lode/v1/[^"]*)"', table))
    page = (ROOT / "docs/reference/api.md").read_text()
    described = re.findall(r"^\| `(GET|POST|PUT|PATCH|DELETE) (/lode/v1/[^`]*)` \|", page, re.M)
    assert len(described) == len(set(described)), "a route is described twice"
    assert set(described) == routes, f"missing: {sorted(routes - set(described))}; unknown: {sorted(set(described) - routes)}"
