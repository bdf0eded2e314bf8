"""The dashboard and the alert rules: every expression is PromQL, and every metric in it is one that a server has."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kit.ops_tools import BIN, ROOT, needs_ops_tools, run
from tests.kit.server import ServerProcess, clean_environment
from tests.standby.kubernetes_api import KubernetesApi
from tests.standby.standby_process import StandbyProcess

DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "curbstone.json").read_text(encoding="utf-8"))
RULES = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yaml").read_text(encoding="utf-8"))

PARSE = """
import json, sys
import promql_parser
for text in json.load(sys.stdin):
    try:
        promql_parser.parse(text)
    except Exception as error:
        sys.exit(f"{text}: {error}")
"""
NAMES = re.compile(r"\b(?:curbstone|process)_\w+")
OF_PROMETHEUS = {"up"}


def expressions_of_panels() -> Iterator[str]:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            text = target["expr"].replace("$__rate_interval", "5m")
            yield re.sub(r"\$\w+", "x", text)


def rules() -> list[dict[str, Any]]:
    return [rule for group in RULES["groups"] for rule in group["rules"]]


@pytest.fixture(scope="module")
def metrics(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The names of all series of a server on which something has happened, and of its standby."""
    folder = tmp_path_factory.mktemp("server")
    with (
        KubernetesApi(folder) as api,
        ServerProcess(
            folder / "data",
            "--standby-backlog=1MiB",
            "--lease=k8s://shop/lease",
            env=clean_environment(**api.variables),
        ) as server,
        StandbyProcess(folder / "other", server.url) as standby,
    ):
        url = f"{server.url}/v2/p/queues/q"
        urllib.request.urlopen(urllib.request.Request(url, data=b'{"groups":["g"]}', method="PUT"))
        urllib.request.urlopen(urllib.request.Request(f"{url}/messages", data=b"x"))
        with contextlib.suppress(urllib.error.HTTPError):
            urllib.request.urlopen(f"{server.url}/v2/p/queues/q/browse?from=x")
        text = urllib.request.urlopen(f"{server.url}/metrics").read().decode()
        standby.has_been_current()
        text += urllib.request.urlopen(f"{standby.status_url}/metrics").read().decode()
    # One that does not grow has no such time.
    named = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE curbstone_queue_seconds_to_full")}
    return named | {line.partition("{")[0].partition(" ")[0] for line in text.splitlines() if not line.startswith("#")}


@needs_ops_tools
def test_every_expression_is_promql() -> None:
    texts = [*expressions_of_panels(), *(rule["expr"] for rule in rules())]
    assert len(texts) > 30
    done = subprocess.run([BIN / "python", "-c", PARSE], input=json.dumps(texts), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_dashboards_use_only_existing_metrics(metrics: set[str]) -> None:
    for text in [*expressions_of_panels(), *(rule["expr"] for rule in rules())]:
        assert set(NAMES.findall(text)) <= metrics, text


def test_dashboard_is_valid(metrics: set[str]) -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        assert panel["type"] == "row" or panel["fieldConfig"]["defaults"]["unit"]
    known = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?([a-z]\w*)", json.dumps(DASHBOARD)))
    assert used == known


def test_every_alert_has_severity_and_summary() -> None:
    assert len({rule["alert"] for rule in rules()}) == len(rules())
    for rule in rules():
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"]["summary"]
        for label in re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])):
            assert label in {"instance", "project", "queue", "group"}


def test_every_alert_links_to_a_runbook_section() -> None:
    page = (ROOT / "docs" / "runbooks.md").read_text(encoding="utf-8")
    sections = {
        title.lower().replace(" ", "-"): text
        for title, text in re.findall(r"^## (.*)\n((?:(?!^## ).*\n)*)", page, re.M)
    }
    for rule in rules():
        path, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert path == "docs/runbooks.md"
        assert f"*{rule['alert']}." in sections[anchor], anchor
        assert "**Check**" in sections[anchor] and "**Fix**" in sections[anchor]


def test_alerts_do_not_depend_on_a_job_name() -> None:
    """With annotations for scraping the job has another name, and two alerts never fired."""
    assert not [rule["alert"] for rule in rules() if re.search(r"\bjob=", rule["expr"])]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="there is no promtool here")
def test_alerts_fire_when_they_should() -> None:
    run("promtool", "check", "rules", ROOT / "deploy" / "prometheus" / "alerts.yaml")
    run("promtool", "test", "rules", ROOT / "tests" / "deploy" / "alerts.test.yaml")


def test_grafana_provisioning_has_the_dashboard_folder() -> None:
    folder: Path = ROOT / "deploy" / "compose"
    compose = yaml.safe_load((folder / "compose.yaml").read_text(encoding="utf-8"))
    provider = yaml.safe_load((folder / "grafana" / "dashboards.yaml").read_text(encoding="utf-8"))["providers"][0]
    mounted = {volume.split(":")[1]: volume.split(":")[0] for volume in compose["services"]["grafana"]["volumes"]}
    assert (folder / mounted[provider["options"]["path"]] / "curbstone.json").exists()
    source = yaml.safe_load((folder / "grafana" / "datasources.yaml").read_text(encoding="utf-8"))["datasources"][0]
    assert re.fullmatch(r"http://(\w+):9090", source["url"]).group(1) in compose["services"]  # type: ignore[union-attr]
