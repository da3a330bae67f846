"""A real Prometheus under load: no panel is empty, no rule is wrong, and faults raise alerts.

Needs PROGRAM_UNDER_TEST and PROMETHEUS_BINARY, which `run` finds or fetches.
"""

from __future__ import annotations

import os
import pathlib
import signal

import chart
import load
import machine
import prometheus
import pytest
import test_monitoring

pytestmark = pytest.mark.skipif(
    not (machine.BINARY and prometheus.PROGRAM),
    reason="PROGRAM_UNDER_TEST or PROMETHEUS_BINARY names no program",
)
GRAFANA = {"$__rate_interval": prometheus.SHORT, "$job": ".*", "$instance": ".*", "$model": ".*"}


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """A server of two DP ranks with a short queue, under more load than it takes, and what
    Prometheus sees of it."""
    port, grpc, sglang = machine.free_ports(3)
    config = {
        "host": "127.0.0.1",
        "port": port,
        "grpc-port": grpc,
        "sglang-grpc-port": sglang,
        "tp-size": 2,
        "dp-size": 2,
        "enable-dp-attention": True,
        "tokenizer-managers": 2,
        "threads-per-rank": 1,
        "max-running-requests": 2,
        "max-queued-requests": 12,
    }
    rendered = chart.render({"config": config})
    (pod,) = rendered.servers()
    container = machine.Container(rendered, pod, tmp_path_factory.mktemp("server"))
    folder = tmp_path_factory.mktemp("prometheus")
    with container.running() as process, prometheus.Prometheus(port, folder) as seen:
        probe = chart.server(pod)["readinessProbe"]
        machine.wait_until_ready(container.log, process, probe, port)
        with load.Load(port, grpc, clients=24) as clients:
            yield process, seen, clients


def test_no_panel_is_empty(watched):
    _, seen, clients = watched
    left = {}
    for panel in test_monitoring.panels():
        for number, target in enumerate(panel["targets"]):
            query = target["expr"]
            for name, value in GRAFANA.items():
                query = query.replace(name, value)
            left[panel["title"], number] = query

    def empty():
        for key, query in list(left.items()):
            if seen.values(query):
                del left[key]
        return left

    prometheus.until(empty, "panels without data")
    assert {200, 400} <= clients.statuses
    assert len(seen.values("count by (dp_rank) (lockstep_dp_rank_num_requests_running)")) == 2


def test_each_alert_is_of_series_that_are_there(watched):
    _, seen, _ = watched
    names = {rule["alert"] for rule in test_monitoring.alerts()}
    # Known to Prometheus, and evaluated at least once.
    prometheus.until(
        lambda: names - {rule["name"] for rule in seen.rules() if rule["health"] != "unknown"},
        "rules that were not evaluated",
    )
    assert not [rule for rule in seen.rules() if rule["health"] != "ok"]
    for rule in test_monitoring.alerts():
        for name in test_monitoring.selectors(rule["expr"]):
            prometheus.until(lambda name=name: not seen.values(f"count({name})"), name)


def test_a_full_queue_raises_alerts(watched):
    _, seen, _ = watched
    wanted = {"LockstepRequestsRefused", "LockstepQueueGrows"}
    prometheus.until(lambda: wanted - seen.firing(), "no alert of a full queue")
    calm = {"LockstepServerDown", "LockstepEngineDown", "LockstepPagesLeaked"}
    assert not calm & seen.firing()


def test_a_lost_worker_raises_an_alert(watched):
    process, seen, _ = watched
    (worker, *_) = [child for child in children(process.pid) if b"\0worker\0" in line(child)]
    os.kill(worker, signal.SIGKILL)
    prometheus.until(
        lambda: {"LockstepServerDown"} - seen.firing(), "no alert of a server that is gone"
    )
    assert process.wait(machine.PATIENCE) == 3


def children(parent: int) -> list[int]:
    lists = pathlib.Path(f"/proc/{parent}/task").glob("*/children")
    return [int(child) for one in lists for child in one.read_text().split()]


def line(process: int) -> bytes:
    return pathlib.Path(f"/proc/{process}/cmdline").read_bytes() + b"\0"
