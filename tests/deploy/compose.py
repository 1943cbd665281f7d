"""Starts the services of deploy/compose.yaml as processes: the same commands, variables, configuration files and health
checks, with an address on the loopback interface for each service, and folders for its volumes. Then uses Lode
through the proxy. Grafana is not started, because Debian has no package of it."""

import contextlib
import glob
import json
import os
import pathlib
import pwd
import random
import re
import shlex
import signal
import subprocess
import urllib.request

from checks import DEPLOY, ROOT, Skip, need, run, status, wait_until


def load(environment):
    """The services, validated against the Compose specification, with the variables of `environment`."""
    program = need("LODE_COMPOSE", "compose-go's program")
    text = run([program, "-no-interpolation", "-no-normalization", "-format", "json", "compose.yaml"], cwd=DEPLOY)

    def variable(match):
        name, kind, rest = match.groups()
        if kind == ":?" and not environment.get(name):
            raise AssertionError(f"compose.yaml needs {name}: {rest}")
        return environment.get(name) or rest

    return json.loads(re.sub(r"\$\{(\w+)(:[-?])([^}]*)\}", variable, text))


def image_defaults():
    """The variables, the entry point and the health check of deploy/Containerfile."""
    text = (DEPLOY / "Containerfile").read_text()
    last = text[text.rindex("\nFROM "):]
    variables = dict(item.split("=", 1) for line in re.findall(r"^ENV (.*)$", last, re.M) for item in line.split())
    return variables, json.loads(re.search(r"^ENTRYPOINT (.*)$", last, re.M)[1]), \
        json.loads(re.search(r"^HEALTHCHECK .*CMD (.*)$", last, re.M)[1])


class Services:
    def __init__(self, scratch, project):
        self.scratch, self.project, self.running = scratch, project, {}
        network = ".".join(project["networks"]["default"]["ipam"]["config"][0]["subnet"].split(".")[:3])
        self.prefix = f"127.{random.randrange(1, 255)}.{random.randrange(1, 255)}"
        self.network = network
        self.hosts = {}
        for at, (name, service) in enumerate(project["services"].items()):
            fixed = (service.get("networks") or {}).get("default") or {}
            self.hosts[name] = fixed.get("ipv4_address", f"{network}.{100 + at}").replace(network, self.prefix)

    def localise(self, name, text):
        """Replaces the addresses and paths of a container with those of its process."""
        hosts = "|".join(re.escape(host) for host in self.hosts)
        text = re.sub(rf"(?<![\w.-])({hosts})(?=:\d)", lambda match: self.hosts[match[1]], text)
        text = re.sub(r"\b(0\.0\.0\.0|127\.0\.0\.1)(?=[:/\"'\s]|$)", self.hosts[name], text)
        text = re.sub(r"^:(?=\d+$)", self.hosts[name] + ":", text)
        text = text.replace(self.network + ".", self.prefix + ".")
        for inside, outside in self.paths(name).items():
            text = re.sub(rf"(?<![\w/.-]){re.escape(inside)}(?![\w-])", str(outside), text)
        return text

    def paths(self, name):
        """Where the mounted files and folders of a container are."""
        service, found = self.project["services"][name], {}
        for mount in service.get("volumes", []):
            if mount["type"] == "volume":
                found[mount["target"]] = self.scratch / "volumes" / mount["source"]
            else:
                found[mount["target"]] = self.scratch / name / mount["target"].lstrip("/")
        for secret in service.get("secrets", []):
            target = secret.get("target", f"/run/secrets/{secret['source']}")
            found[target] = self.scratch / name / target.lstrip("/")
        return dict(sorted(found.items(), key=lambda item: -len(item[0])))

    def prepare(self, name, environment):
        service = self.project["services"][name]
        for mount in service.get("volumes", []):
            outside = self.paths(name)[mount["target"]]
            if mount["type"] == "volume":
                outside.mkdir(parents=True, exist_ok=True)
            else:
                outside.parent.mkdir(parents=True, exist_ok=True)
                text = pathlib.Path(mount["source"]).read_text().replace("scrape_interval: 15s", "scrape_interval: 1s")
                outside.write_text(self.localise(name, text))
        for secret in service.get("secrets", []):
            outside = self.paths(name)[secret.get("target", f"/run/secrets/{secret['source']}")]
            outside.parent.mkdir(parents=True, exist_ok=True)
            outside.write_text(environment[self.project["secrets"][secret["source"]]["environment"]])

    def command(self, name):
        """The command line and the variables of a service that runs Lode."""
        service = self.project["services"][name]
        variables, entry, check = image_defaults()
        assert entry == ["lode"], entry
        variables.update(service.get("environment", {}))
        assert "LODE_ALLOW_ANONYMOUS" not in variables
        return [os.environ["LODE_BIN"], *service["command"]], variables, service.get("healthcheck", {}).get("test", ["CMD", *check])

    def spawn(self, name, command, variables=None, user=None):
        command = [self.localise(name, part) for part in command]
        variables = {key: self.localise(name, str(value)) for key, value in (variables or {}).items()}
        home = self.scratch / name
        home.mkdir(exist_ok=True)
        log = open(self.scratch / f"{name}.log", "ab")
        base = {"PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(self.scratch)}
        self.running[name] = subprocess.Popen(command, env={**base, **variables}, cwd=home, stdout=log, stderr=log, user=user)

    def alive(self, name):
        status = self.running[name].poll()
        assert status is None, f"{name} ended with {status}: {(self.scratch / f'{name}.log').read_text()[-2000:]}"

    def start_lode(self, name):
        command, variables, check = self.command(name)
        self.spawn(name, command, variables)
        assert check[:2] == ["CMD", "healthcheck"], check
        script = self.scratch / name / "healthcheck"
        script.write_text(self.localise(name, (DEPLOY / "healthcheck").read_text()))
        listen = self.localise(name, variables["LODE_LISTEN"])

        def healthy():
            self.alive(name)
            checked = subprocess.run(["bash", script, *check[2:]], env={"LODE_LISTEN": listen, "PATH": os.environ["PATH"]}, capture_output=True)
            return checked.returncode == 0

        wait_until(f"{name} is healthy", healthy)

    def start_postgres(self):
        service, name = self.project["services"]["postgres"], "postgres"
        variables = service["environment"]
        binaries = sorted(glob.glob("/usr/lib/postgresql/*/bin"))
        if not binaries:
            raise Skip("no PostgreSQL")
        data = self.paths(name)["/var/lib/postgresql/data"]
        password = self.localise(name, variables["POSTGRES_PASSWORD_FILE"])
        user = None
        if os.getuid() == 0:  # PostgreSQL refuses to run as root
            user = "postgres"
            account = pwd.getpwnam(user)
            for path in (data, pathlib.Path(password), self.scratch / name):
                os.chown(path, account.pw_uid, account.pw_gid)
        prefix = ["runuser", "-u", user, "--"] if user else []
        run([*prefix, f"{binaries[-1]}/initdb", "-D", data, "-U", variables["POSTGRES_USER"], "--pwfile", password,
             "-A", "scram-sha-256", "--no-sync"])
        self.spawn(name, [f"{binaries[-1]}/postgres", "-D", str(data), "-k", str(data), "-h", self.hosts[name], "-c", "fsync=off"], user=user)
        check = [self.localise(name, part) for part in service["healthcheck"]["test"][1:]]
        wait_until("postgres is healthy", lambda: subprocess.run([f"{binaries[-1]}/{check[0]}", *check[1:]], capture_output=True).returncode == 0)
        secret = pathlib.Path(password).read_text()
        run(["psql", f"postgres://{variables['POSTGRES_USER']}:{secret}@{self.hosts[name]}:5432/postgres", "-c", f"create database {variables['POSTGRES_DB']}"])

    def start_s3(self):
        run([self.localise("bucket", part) for part in self.project["services"]["bucket"]["entrypoint"]])
        service = self.project["services"]["s3"]
        self.spawn("s3", [need("LODE_VERSITYGW", "versitygw"), *service["command"]], service["environment"])
        url = self.localise("s3", service["healthcheck"]["test"][-1])
        wait_until("s3 is healthy", lambda: status(url) == 200)

    def start_proxy(self):
        folder = self.scratch / "proxy"
        temporary = "".join(f"{kind}_temp_path {folder}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        site = self.paths("proxy")["/etc/nginx/conf.d/default.conf"]
        site.write_text(site.read_text().replace("listen 8080", f"listen {self.hosts['proxy']}:8080"))
        root = "user root;\n" if os.getuid() == 0 else ""
        (folder / "nginx.conf").write_text(f"{root}pid {folder}/nginx.pid;\nevents {{}}\nhttp {{\naccess_log off;\n{temporary}include {site};\n}}\n")
        program = need("LODE_NGINX", "nginx", "/usr/sbin/nginx")
        self.spawn("proxy", [program, "-g", "daemon off;", "-e", f"{folder}/error.log", "-p", str(folder), "-c", f"{folder}/nginx.conf"])

    def start_prometheus(self):
        service = self.project["services"]["prometheus"]
        address = f"{self.hosts['prometheus']}:9090"
        program = need("LODE_PROMETHEUS", "prometheus", "/usr/bin/prometheus")
        self.spawn("prometheus", [program, *service["command"], f"--web.listen-address={address}"])
        return f"http://{address}"

    def stop(self, name):
        process = self.running.pop(name)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) in (0, -signal.SIGTERM), f"{name} ended with {process.returncode}"

    def stop_all(self):
        for name, process in self.running.items():
            # The others have processes of their own to end.
            process.kill() if name.startswith("lode-") else process.terminate()
        for process in self.running.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()


def read(url):
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=5) as response:
        return response.read().decode()


def check_files():
    """Every service has a health check or needs none, every mounted file exists, and the proxy is the documented one."""
    secrets = {name: "x" for name in ("POSTGRES_PASSWORD", "S3_SECRET_KEY", "LODE_WORKER_TOKEN")}
    project = load(secrets)
    for name, service in project["services"].items():
        for mount in service.get("volumes", []):
            assert mount["type"] == "volume" or pathlib.Path(mount["source"]).is_file(), f"{name} mounts {mount['source']}, which does not exist"
        for port in service.get("ports", []):
            assert "127.0.0.1" in str(port), f"{name} is published to other machines by default: {port}"
    for name in secrets:
        with contextlib.suppress(AssertionError):
            load({**secrets, name: ""})
            raise RuntimeError(f"compose.yaml starts without {name}")
    documented = {line.strip() for line in (DEPLOY / "nginx.conf").read_text().splitlines()}
    own = {line.strip() for line in (DEPLOY / "compose/nginx.conf").read_text().splitlines()}
    missing = {line for line in documented - own if line.endswith(";") and line.split()[0] not in ("listen", "server", "server_name", "#")}
    assert not missing, f"deploy/compose/nginx.conf lacks settings of deploy/nginx.conf: {missing}"


def check_settings(scratch):
    """create-env explains itself, and writes nothing if its argument is not the URL of a server."""
    file = pathlib.Path(scratch) / "env"
    environment = {**os.environ, "LODE_ENV_FILE": str(file)}
    program = DEPLOY / "compose/create-env"
    for argument in ["-h", "--help"]:
        assert run([program, argument], env=environment).startswith("usage: "), argument
    for wrong in ["--bogus", "models.example.com", "ftp://models.example.com", "http://", "http://a b"]:
        done = subprocess.run([program, wrong], env=environment, capture_output=True, text=True)
        assert done.returncode == 2 and wrong in done.stderr, f"{wrong}: {done}"
    assert not file.exists(), "create-env wrote settings without a URL"
    run([program, "https://models.example.com:8443"], env=environment)
    assert "\nLODE_PUBLIC_URL=https://models.example.com:8443\n" in file.read_text()


def check_services(scratch):
    """The services work together: sign-in, push, pull and run through the proxy, while one replica is stopped."""
    scratch = pathlib.Path(scratch)
    os.chmod(scratch, 0o755)
    environment_file = scratch / "env"
    services = Services(scratch, load({"POSTGRES_PASSWORD": "x", "S3_SECRET_KEY": "x", "LODE_WORKER_TOKEN": "x"}))
    url = f"http://{services.hosts['proxy']}:8080"
    run([DEPLOY / "compose/create-env", url], env={**os.environ, "LODE_ENV_FILE": str(environment_file)})
    assert environment_file.stat().st_mode & 0o077 == 0
    environment = dict(shlex.split(line)[0].split("=", 1) for line in environment_file.read_text().splitlines() if line[0] != "#")
    services.project = load(environment)
    try:
        for name in services.project["services"]:
            if name != "grafana":
                services.prepare(name, environment)
        services.start_postgres()
        services.start_s3()
        services.start_lode("lode-1")
        services.start_lode("lode-2")
        services.start_proxy()
        wait_until("the proxy serves", lambda: status(f"{url}/readyz") == 200)
        services.start_lode("worker")
        prometheus = services.start_prometheus()
        assert status(f"{url}/metrics") == 404
        assert status(f"{url}/v2/") == 401, "visitors need no credentials"
        use(services, url, environment, scratch)
        wait_until("Prometheus reads both replicas", lambda: [target["health"] for target in
                   json.loads(read(f"{prometheus}/api/v1/targets"))["data"]["activeTargets"]] == ["up", "up"])
        assert json.loads(read(f"{prometheus}/api/v1/rules"))["data"]["groups"], "no alerts"
    finally:
        services.stop_all()


def use(services, url, environment, scratch):
    home = scratch / "client"
    home.mkdir()
    variables = {"PATH": os.environ["PATH"], "HOME": str(home), "LODE_HOST": url}

    def lode(*arguments, stdin=""):
        return run([os.environ["LODE_BIN"], *arguments], env=variables, input=stdin, cwd=home)

    lode("login", "--username", "admin", "--password-stdin", stdin=environment["LODE_ADMIN_PASSWORD"])
    model = ROOT / "tests/models/lode-demo"
    lode("create", "team/mini", str(model))
    wait_until("the worker has joined", lambda: "\nlode_workers_attached 1\n" in read(f"http://{services.hosts['lode-1']}:5000/metrics"))
    assert "81" in lode("run", "team/mini", "What is 40 plus 41?")
    services.stop("lode-1")
    lode("pull", "team/mini", "--to", "copy")
    run(["diff", "-r", home / "copy", model])
    assert "81" in lode("run", "team/mini", "What is 40 plus 41?")
    services.start_lode("lode-1")
