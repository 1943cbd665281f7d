"""What the checks of deploy/ share."""

import os
import pathlib
import shutil
import subprocess
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"


class Skip(Exception):
    """A program is missing."""


def need(variable, what, *places):
    """The path of a program: named by a variable, or at one of the usual places."""
    for path in (os.environ.get(variable), *places):
        if path and shutil.which(path):
            return path
    raise Skip(f"no {what} (set {variable})")


def debian(*arguments):
    """Fetches Debian's packages, as root."""
    program = need("LODE_MMDEBSTRAP", "mmdebstrap", "/usr/bin/mmdebstrap")
    if os.geteuid() != 0:
        raise Skip("not root")
    done = subprocess.run([program, "--quiet", *map(str, arguments)], capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        raise Skip(f"Debian's packages cannot be fetched: {done.stderr[-500:]}")


def run(command, **options):
    """Runs a command that has to succeed, and returns its output."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=300, **options)
    assert done.returncode == 0, f"`{' '.join(map(str, command))}` ended with {done.returncode}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


def wait_until(what, fact, seconds=120):
    end = time.monotonic() + seconds
    while not fact():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.1)


def status(url):
    """The status of a response, or None without a response."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=5) as response:
            return response.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return None
