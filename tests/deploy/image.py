"""Builds the container image of a release with buildah, stores it in Lode, and runs it from there. Base images cannot be
pulled in every environment, so Debian's packages replace debian:bookworm-slim."""

import contextlib
import json
import os
import pathlib
import platform
import re
import shutil
import signal
import subprocess

from checks import DEPLOY, debian, need, run, status, wait_until

ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}
BASE = "docker.io/library/debian:bookworm-slim"
# What the program and its health check need of it.
PACKAGES = "base-files,bash,coreutils,libc6,libgcc-s1"


@contextlib.contextmanager
def running(command, log, **options):
    """Runs a server until the block ends, with its output in the file `log`. Gives the block its port."""
    with open(log, "w") as output:
        process = subprocess.Popen(command, start_new_session=True, stdout=output, stderr=output, **options)
    listening = re.compile(r"listening on http://[0-9.]+:([0-9]+)\n")
    try:
        wait_until(f"{command[0]} serves", lambda: process.poll() is not None or listening.search(log.read_text()))
        assert process.poll() is None, f"{command[0]} ended with {process.returncode}: {log.read_text()[-3000:]}"
        yield int(listening.search(log.read_text())[1])
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=60)


def check_release(scratch):
    buildah = need("LODE_BUILDAH", "buildah", "/usr/bin/buildah")
    skopeo = need("LODE_SKOPEO", "skopeo", "/usr/bin/skopeo")
    scratch, program = pathlib.Path(scratch), os.environ["LODE_BIN"]
    (scratch / "storage.conf").write_text(f'[storage]\ndriver = "vfs"\ngraphroot = "{scratch}/images"\nrunroot = "{scratch}/containers"\n')
    os.environ |= {"CONTAINERS_STORAGE_CONF": str(scratch / "storage.conf"), "BUILDAH_ISOLATION": "chroot"}

    debian("--variant=extract", f"--include={PACKAGES}", "bookworm", scratch / "base.tar")
    empty = run([buildah, "from", "scratch"]).strip()
    run([buildah, "add", "--quiet", empty, scratch / "base.tar", "/"])
    run([buildah, "commit", "--quiet", "--rm", empty, BASE])

    archive, architecture = scratch / "image.tar", ARCHITECTURE[platform.machine()]
    stripped = scratch / "lode"
    run(["objcopy", "--strip-all", program, stripped]) if shutil.which("objcopy") else shutil.copy(program, stripped)
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    run([DEPLOY / "build-image", archive, f"{architecture}={stripped}"], env=environment)

    variables = {"PATH": os.environ["PATH"], "HOME": str(scratch)}
    server = [program, "serve", "--no-worker", "--listen", "127.0.0.1:0", "--data", str(scratch / "registry"), "--allow-anonymous"]
    with running(server, scratch / "registry.log", env=variables) as port:
        host = f"127.0.0.1:{port}"
        run([skopeo, "copy", "--all", "--dest-tls-verify=false", f"oci-archive:{archive}", f"docker://{host}/apps/lode:1"])
        image = run([buildah, "pull", "--quiet", "--tls-verify=false", f"{host}/apps/lode:1"]).strip()
    assert_config(json.loads(run([buildah, "inspect", "--type", "image", image]))["OCIv1"])

    container = run([buildah, "from", image]).strip()
    log = scratch / "container.log"

    def in_container(port, *command):
        return [buildah, "run", "--env", f"LODE_LISTEN=0.0.0.0:{port}", container, "--", *command]

    with running(in_container(0, "lode", "serve"), log) as port:
        run(in_container(port, "healthcheck"))
        answer = status(f"http://127.0.0.1:{port}/v2/")
        assert answer == 503, f"a server without an administrator answers with {answer}"
    assert "open to other users" not in log.read_text(), log.read_text()
    unhealthy = subprocess.run(in_container(port, "healthcheck"), capture_output=True)
    assert unhealthy.returncode != 0, "a server that has stopped is healthy"


def assert_config(image):
    config = image["config"]
    assert config["User"] == "10001:10001" and config["Entrypoint"] == ["lode"] and config["Cmd"] == ["serve"], config
    assert config["Volumes"] == {"/data": {}} and "5000" in next(iter(config["ExposedPorts"])), config
    assert {"LODE_DATA=/data", "LODE_LISTEN=0.0.0.0:5000"} <= set(config["Env"]) and not any("ANONYMOUS" in item for item in config["Env"]), config
    assert image["created"].startswith("2023-11-14"), f"the time of the release is not kept: {image['created']}"
