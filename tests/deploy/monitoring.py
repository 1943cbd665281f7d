"""Checks the alert rules and the dashboard in deploy/."""

import json
import pathlib
import re

from checks import ROOT, need, run

METRICS = ROOT / "docs/reference/metrics.md"


def known_metrics():
    """The metrics of the reference page, with the series of each histogram."""
    names = {}
    for name, kind in re.findall(r"^\| `(lode_\w+)` \| (\w+) \|", METRICS.read_text(), re.M):
        names[name] = kind
    assert len(names) > 30, f"{METRICS} has only {len(names)} metrics"
    series = set(names)
    for name, kind in names.items():
        if kind == "histogram":
            series |= {f"{name}_{part}" for part in ("bucket", "sum", "count")}
    return series


def check_rules():
    promtool = need("LODE_PROMTOOL", "promtool", "/usr/bin/promtool")
    run([promtool, "check", "rules", ROOT / "deploy/alerts.yaml"])
    run([promtool, "test", "rules", ROOT / "deploy/alerts-test.yaml"])


def check_every_alert_is_tested():
    alerts = re.findall(r"- alert: (\w+)", (ROOT / "deploy/alerts.yaml").read_text())
    tested = set(re.findall(r'alertname="(\w+)"', (ROOT / "deploy/alerts-test.yaml").read_text()))
    assert tested == set(alerts), f"tested: {sorted(tested)}, expected {sorted(alerts)}"


def check_metrics_exist():
    """An unknown metric has no error in Prometheus: its rule never fires, and its panel stays empty."""
    known = known_metrics()
    dashboard = json.loads((ROOT / "deploy/grafana-dashboard.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    assert len(queries) > 20, "the dashboard has too few queries"
    # Only the queries: the texts of alerts name settings and commands, too.
    rules = re.findall(r"expr: (?:\|\n((?:              .*\n| {10,}.*\n)+)|(.*))", (ROOT / "deploy/alerts.yaml").read_text())
    queries += ["".join(rule) for rule in rules]
    for query in queries:
        unknown = set(re.findall(r"lode_\w+", query)) - known
        assert not unknown, f"{sorted(unknown)} in {query}"


def check_queries_parse(scratch):
    """Every query of the dashboard is valid: it becomes a recording rule, with values in place of Grafana's variables."""
    promtool = need("LODE_PROMTOOL", "promtool", "/usr/bin/promtool")
    dashboard = json.loads((ROOT / "deploy/grafana-dashboard.json").read_text())
    values = {"$job": "lode", "$instance": ".*", "$__rate_interval": "5m"}
    rules = []
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            query = target["expr"]
            for name, value in values.items():
                query = query.replace(name, value)
            assert "$" not in query, query
            rules.append({"record": f"panel:{panel['id']}:{target['refId']}", "expr": query})
    file = pathlib.Path(scratch) / "dashboard.yaml"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))  # JSON is YAML
    run([promtool, "check", "rules", "--lint=none", file])
