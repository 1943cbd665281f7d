"""Checks the units of systemd in deploy/."""

import os
import pathlib
import re
import shutil
import subprocess

from checks import DEPLOY, ROOT, Skip, need, run

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


def check_services(scratch):
    """The units under a real systemd, in a container of Debian's packages: both services start, and a server with a socket
    restarts five times without a refused connection."""
    if "LODE_LONG" not in os.environ:
        raise Skip("only in tests/run --long")
    nspawn = need("LODE_NSPAWN", "systemd-nspawn", "/usr/bin/systemd-nspawn")
    mmdebstrap = need("LODE_MMDEBSTRAP", "mmdebstrap", "/usr/bin/mmdebstrap")
    root = pathlib.Path(scratch) / "root"
    run([mmdebstrap, "--quiet", "--variant=minbase", "--include=systemd,systemd-sysv,dbus,curl", "bookworm", root])
    for name in UNITS:
        shutil.copy(DEPLOY / name, root / "etc/systemd/system")
    shutil.copy(os.environ["LODE_BIN"], root / "usr/local/bin/lode")
    (root / "usr/local/bin/check").write_text(SCRIPT)
    (root / "usr/local/bin/check").chmod(0o755)
    (root / "etc/systemd/system/check.service").write_text(
        "[Unit]\nAfter=multi-user.target\n[Service]\nExecStart=/usr/local/bin/check\n")
    wants = root / "etc/systemd/system/multi-user.target.wants"
    wants.mkdir(exist_ok=True)
    (wants / "check.service").symlink_to("../check.service")
    subprocess.run([nspawn, "--quiet", "--keep-unit", "--register=no", "--console=pipe", f"--directory={root}", "--boot"],
                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=300, check=True)
    log = (root / "check.log").read_text()
    assert "\npassed\n" in log, log


# Runs inside the container. The socket listens on 127.0.0.1:5000, and the server waits 5 s before it stops.
SCRIPT = """#!/bin/bash
exec >/check.log 2>&1
set -eux
trap 'journalctl --no-pager --unit lode --unit lode-worker' ERR
trap 'systemctl --no-block poweroff' EXIT
mkdir /etc/lode
echo LODE_WORKER_TOKEN=0123456789abcdef0123456789abcdef >/etc/lode/environment
{ cat /etc/lode/environment; echo LODE_REGISTRY=http://127.0.0.1:5000; echo LODE_ADVERTISE=http://127.0.0.1:5100; } >/etc/lode/worker.environment
systemctl enable --now lode.socket lode.service
curl --silent --fail --retry 50 --retry-delay 1 --retry-all-errors http://127.0.0.1:5000/readyz
[ "$(stat -c %a /var/lib/private/lode)" = 700 ]
[ "$(stat -c %U "/proc/$(systemctl show --property MainPID --value lode)")" != root ]
set +x
(for _ in 1 2 3 4 5; do sleep 2; systemctl restart lode; done; touch /restarted) &
requests=0
until [ -e /restarted ]; do
    curl --silent --show-error --fail --max-time 30 --output /dev/null http://127.0.0.1:5000/healthz
    requests=$((requests + 1))
done
set -x
[ "$requests" -gt 100 ]
systemctl start lode-worker
until LODE_HOST=http://127.0.0.1:5000 lode worker list | grep -q 127.0.0.1:5100; do sleep 0.2; done
systemctl stop lode-worker lode lode.socket
[ "$(systemctl show --property Result --value lode)" = success ]
[ "$(systemctl show --property Result --value lode-worker)" = success ]
echo "$requests requests"
echo passed
"""
