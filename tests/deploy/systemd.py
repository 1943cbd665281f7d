"""Runs the units under a real systemd, in a container of Debian's packages."""

import os
import pathlib
import shutil
import subprocess

from checks import DEPLOY, debian, need
from units import UNITS


def check_units(scratch):
    """Both services start, and a server with a socket restarts five times without a refused connection."""
    nspawn = need("LODE_NSPAWN", "systemd-nspawn", "/usr/bin/systemd-nspawn")
    root = pathlib.Path(scratch) / "root"
    debian("--variant=minbase", "--include=systemd,systemd-sysv,dbus,curl", "bookworm", root)
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
    subprocess.run([nspawn, "--quiet", "--keep-unit", "--register=no", "--private-network", "--console=pipe",
                    f"--directory={root}", "--boot"],
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
