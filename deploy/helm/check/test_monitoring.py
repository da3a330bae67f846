"""The dashboard and the alerts ask for series that the server has."""

from __future__ import annotations

import json
import re

import chart
import promql_parser
import pytest
import yaml
from grafana_foundation_sdk.cog import encoder
from grafana_foundation_sdk.models import dashboard as dashboards

KINDS = dict(
    re.findall(
        r"^\| `(\w+)` \| (\w+) \|",
        (chart.ROOT / "docs" / "metrics.md").read_text(),
        flags=re.MULTILINE,
    )
)
# Prometheus' own.
OTHERS = {"up"}
# What Grafana puts in place of these.
VARIABLES = {"$__rate_interval": "1m", "$job": ".*", "$instance": ".*", "$model": ".*"}


def dashboard() -> dict:
    return json.loads((chart.CHART / "files" / "dashboard.json").read_text())


def panels() -> list[dict]:
    return [one for one in dashboard()["panels"] if one["type"] != "row"]


def alerts() -> list[dict]:
    text = (chart.CHART / "files" / "alerts.yaml").read_text()
    return [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]


def queries() -> list[tuple[str, str]]:
    shown = [(one["title"], target["expr"]) for one in panels() for target in one["targets"]]
    return shown + [(rule["alert"], rule["expr"]) for rule in alerts()]


def selectors(query: str) -> dict[str, bool]:
    """Names of series in a query, and whether each stands under a range."""
    for name, value in VARIABLES.items():
        query = query.replace(name, value)
    found: dict[str, bool] = {}

    def visit(node) -> bool:
        # A range comes before the selector in it.
        if isinstance(node, promql_parser.MatrixSelector):
            found[node.vector_selector.name] = True
        elif isinstance(node, promql_parser.VectorSelector):
            found.setdefault(node.name, False)
        return True

    promql_parser.walk(promql_parser.parse(query), visit)
    return found


@pytest.mark.parametrize("where, query", queries(), ids=lambda text: text[:40])
def test_each_query_is_of_metrics_that_the_server_has(where, query):
    found = selectors(query)
    assert found, f"{where}: no series in {query}"
    for name, ranged in found.items():
        base = re.sub(r"_(bucket|sum|count)$", "", name)
        kind = KINDS.get(name) or (KINDS.get(base) if KINDS.get(base) == "histogram" else None)
        assert kind or name in OTHERS, f"{where}: docs/metrics.md has no {name}"
        if kind in ("counter", "histogram"):
            assert ranged, f"{where}: {name} only grows; ask for its rate"
        if kind == "histogram":
            assert name != base, f"{where}: {name} has _bucket, _sum and _count"


def test_each_metric_has_its_panel():
    shown = {re.sub(r"_(bucket|sum|count)$", "", name) for one in panels() for target in one["targets"]
             for name in selectors(target["expr"])}
    # Shown by the names of variables, or of no use on a time axis.
    left = KINDS.keys() - shown - {
        "lockstep_build_info",
        "process_threads",
        "process_virtual_memory_bytes",
    }
    assert not left, sorted(left)


def test_grafana_knows_every_field():
    """Its own model of a dashboard keeps what it knows, and drops the rest."""
    model = dashboards.Dashboard.from_json(dashboard())
    kept = json.loads(encoder.JSONEncoder().encode(model))
    assert not list(dropped(dashboard(), kept))


def dropped(ours, kept, where: str = ""):
    """Places where `kept` has not what is ours."""
    match ours, kept:
        case dict(), dict():
            for key, value in ours.items():
                yield from dropped(value, kept.get(key), f"{where}.{key}")
        case list(), list() if len(ours) == len(kept):
            for number, (one, other) in enumerate(zip(ours, kept)):
                yield from dropped(one, other, f"{where}[{number}]")
        case _ if ours != kept:
            yield where


def test_panels_can_be_told_apart():
    ids = [one["id"] for one in dashboard()["panels"]]
    assert len(ids) == len(set(ids))
    places = set()
    for one in dashboard()["panels"]:
        at = one["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert at["x"] + at["w"] <= 24 and not cells & places, one["title"]
        places |= cells
    for one in panels():
        assert one["description"], one["title"]
        assert all(target["datasource"]["uid"] == "${datasource}" for target in one["targets"])


def test_alerts_say_what_to_do():
    names = [rule["alert"] for rule in alerts()]
    assert len(names) == len(set(names)) >= 10
    for rule in alerts():
        assert rule["labels"]["severity"] in ("critical", "warning", "info"), rule["alert"]
        assert rule["annotations"].keys() == {"summary", "description"}, rule["alert"]


def test_the_chart_ships_both_as_they_are():
    rendered = chart.rendered(chart.HERE / "values" / "valid" / "monitoring.yaml")
    groups = rendered.one("PrometheusRule")["spec"]["groups"]
    assert groups[0]["rules"] == alerts() and [one["name"] for one in groups] == ["lockstep", "own"]
    shipped = rendered.one("ConfigMap", "demo-lockstep-dashboard")
    assert json.loads(shipped["data"]["lockstep.json"]) == dashboard()
    assert shipped["metadata"]["labels"]["grafana_dashboard"] == "1"


def test_every_alert_has_its_remedy():
    """docs/running.md has a paragraph for each alert, and for no other."""
    page = (chart.ROOT / "docs" / "running.md").read_text()
    parts = page.split("\n## Alerts\n")[1].split("\n## ")[0].split("\n### ")[1:]
    remedies = {name: text.strip() for name, _, text in (part.partition("\n") for part in parts)}
    assert list(remedies) == [rule["alert"] for rule in alerts()]
    assert all(remedies.values()), remedies


def test_remedies_name_series_and_options_that_there_are():
    page = (chart.ROOT / "docs" / "running.md").read_text()
    series = set(re.findall(r"`((?:lockstep|process)_\w+)", page))
    assert series and series <= set(KINDS), series - set(KINDS)
    flags = (chart.ROOT / "docs" / "flags.md").read_text()
    known = set(re.findall(r"^\| `(?:-\w, )?(--[\w-]+)", flags, flags=re.MULTILINE))
    # Options of other programs.
    known |= set(re.findall(r"--(?:health|policy)[\w-]*", page)) - {"--health-timeout"}
    known |= {"--health-timeout"} & set(re.findall(r"--[\w-]+", flags))
    options = set(re.findall(r"--[a-z][\w-]+", page))
    assert options and options <= known, options - known
