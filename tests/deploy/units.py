"""Checks the units of systemd in deploy/."""

import pathlib
import re
import subprocess

from checks import ROOT, need, run

UNITS = ["lode.service", "lode.socket", "lode-worker.service"]


def copies(scratch):
    """The units, with a program that exists in place of the one that is installed."""
    for name in UNITS:
        text = (ROOT / "deploy" / name).read_text()
        (pathlib.Path(scratch) / name).write_text(text.replace("ExecStart=lode", "ExecStart=/bin/true"))
    return [pathlib.Path(scratch) / name for name in UNITS]


def check_syntax(scratch):
    program = need("LODE_SYSTEMD_ANALYZE", "systemd-analyze", "/usr/bin/systemd-analyze")
    units = copies(scratch)
    done = subprocess.run([program, "verify", "--man=no", *units], capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr
    units[0].write_text(units[0].read_text().replace("DynamicUser", "DynamicUsers"))
    done = subprocess.run([program, "verify", "--man=no", *units], capture_output=True, text=True)
    assert "DynamicUsers" in done.stderr, "systemd-analyze accepts an unknown setting"


def check_exposure(scratch):
    """systemd's own measure of what a service may do: 0 is nothing, 10 is everything."""
    program = need("LODE_SYSTEMD_ANALYZE", "systemd-analyze", "/usr/bin/systemd-analyze")
    for unit in copies(scratch):
        if unit.suffix == ".service":
            level = float(re.search(r"exposure level for \S+ ([\d.]+)", run([program, "security", "--offline=true", "--no-pager", unit]).replace(":", ""))[1])
            assert level <= 2, f"{unit.name}: {level}"


def check_paths():
    """The units start the program of a package and one in /usr/local/bin, and none opens the server to everyone."""
    for name in UNITS:
        text = (ROOT / "deploy" / name).read_text()
        for line in text.splitlines():
            assert "ALLOW_ANONYMOUS" not in line, f"{name}: {line}"
        assert name.endswith(".socket") or re.search(r"^ExecStart=lode ", text, re.M)
