"""Checks the chart of deploy/helm/lode: helm's own checks, the schemas of Kubernetes, and the settings that it gives to
Lode. No cluster is needed."""

import json
import os
import pathlib
import re
import subprocess

import yaml

from checks import ROOT, need, run

CHART = ROOT / "deploy/helm/lode"
# The newest version whose schemas kubectl-validate contains.
KUBERNETES = "1.30"


def render(values, *arguments):
    """The objects of the chart with one of the files of `ci/`."""
    text = run([need("LODE_HELM", "helm"), "template", "lode", CHART, "--namespace", "models", "-f", CHART / f"ci/{values}.yaml", *arguments])
    return [document for document in yaml.safe_load_all(text) if document]


def validate(objects, folder):
    """The output of kubectl-validate, or None if it accepts the objects."""
    folder.mkdir()
    for at, document in enumerate(objects):
        # Its schema comes from the Prometheus operator.
        if document["kind"] != "ServiceMonitor":
            (folder / f"{at}.yaml").write_text(yaml.safe_dump(document))
    command = [need("LODE_KUBECTL_VALIDATE", "kubectl-validate"), "--version", KUBERNETES, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    return None if done.returncode == 0 else done.stdout + done.stderr


def check_lint():
    helm = need("LODE_HELM", "helm")
    run([helm, "lint", "--strict", CHART])
    for values in (CHART / "ci").iterdir():
        run([helm, "lint", "--strict", CHART, "-f", values])


def check_objects(scratch):
    """Kubernetes accepts what the chart makes, and would refuse a mistake."""
    scratch = pathlib.Path(scratch)
    for values in ("single", "replicated"):
        objects = render(values)
        refused = validate(objects, scratch / values)
        assert refused is None, refused
        wrong = [document for document in objects if document["kind"] == "Deployment"]
        wrong[0]["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
        assert validate(wrong, scratch / f"{values}-wrong"), "kubectl-validate accepts an unknown field"


def check_refused_values():
    helm = need("LODE_HELM", "helm")
    for setting, message in [
        ("mode=replicated", "/storage/url"),
        ("mode=clustered", "/mode"),
        ("existingSecret=", "/existingSecret"),
        ("sever.replicas=1", "sever"),
        ("workers.cpu.replica=1", "/workers/cpu"),
    ]:
        done = subprocess.run([helm, "template", "lode", CHART, "--set", setting], capture_output=True, text=True)
        assert done.returncode != 0 and message in done.stderr, f"{setting}: {done.stdout[:500]}{done.stderr}"


def pods(objects):
    return {document["metadata"]["name"]: document["spec"]["template"]["spec"] for document in objects if document["kind"] == "Deployment"}


def check_pods():
    """No pod is privileged or open, and each may stop in peace."""
    for values in ("single", "replicated"):
        objects = render(values)
        services = {document["metadata"]["name"]: document for document in objects if document["kind"] == "Service"}
        for name, pod in pods(objects).items():
            container = pod["containers"][0]
            security = {**pod["securityContext"], **container["securityContext"]}
            assert security["runAsNonRoot"] and security["readOnlyRootFilesystem"] and not security["allowPrivilegeEscalation"]
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert pod["enableServiceLinks"] is False, "Kubernetes would set variables such as LODE_PORT"
            variables = {item["name"]: item.get("value") for item in container["env"]}
            assert "LODE_ALLOW_ANONYMOUS" not in variables
            grace = 2 * int(variables["LODE_SHUTDOWN_GRACE"].rstrip("s")) + int(variables.get("LODE_DRAIN_DELAY", "0s").rstrip("s"))
            assert pod["terminationGracePeriodSeconds"] > grace, name
            registry = variables.get("LODE_REGISTRY")
            assert registry is None or registry.split("//")[1].split(":")[0] in services, registry
    gpu = pods(render("replicated"))["lode-worker-gpu"]
    assert gpu["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 1}
    assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in gpu["tolerations"]


def check_settings(scratch):
    """Lode accepts the variables and the settings file of its pods, and its settings are those of the values."""
    scratch = pathlib.Path(scratch)
    expected = {
        "single": ['gc_grace = "2d"', "keep_last = 10", 'public_url = "https://models.example.com'],
        "replicated": ['storage = "s3://models/lode"', 'drain_delay = "20s"', 'storage_endpoint = "https://s3.example.com'],
    }
    for values, lines in expected.items():
        objects = render(values)
        config = next(document["data"]["lode.toml"] for document in objects if document["kind"] == "ConfigMap")
        (scratch / "lode.toml").write_text(config)
        container = pods(objects)["lode"]["containers"][0]
        mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
        for name in ("admin-password", "secret-key"):
            (scratch / name).write_text("0" * 64)
        secrets = {"database": "postgres://lode:secret@db/lode", "worker-token": "a long random text"}
        variables = {"PATH": os.environ["PATH"]}
        for item in container["env"]:
            value = item.get("value") or secrets.get(item["valueFrom"]["secretKeyRef"]["key"], "key")
            if re.fullmatch(r"/(etc|run/secrets)/lode/[a-z.-]+", value):
                assert str(pathlib.Path(value).parent) in mounts, f"{value} is not mounted"
                value = str(scratch / pathlib.Path(value).name)
            variables[item["name"]] = value
        printed = run([os.environ["LODE_BIN"], *container["args"], "--print-config"], env=variables, cwd=scratch)
        for line in lines:
            assert line in printed, f"{values}: `{line}` is not in\n{printed}"


def check_schema():
    """Every value of the chart is in its schema."""
    def compare(path, values, schema):
        for key, value in values.items():
            assert key in schema.get("properties", {}), f"{path}.{key} is not in values.schema.json"
            if isinstance(value, dict) and "properties" in schema["properties"][key]:
                compare(f"{path}.{key}", value, schema["properties"][key])

    compare("", yaml.safe_load((CHART / "values.yaml").read_text()), json.loads((CHART / "values.schema.json").read_text()))
