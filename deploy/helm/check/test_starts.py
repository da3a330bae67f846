"""The real program, started as the rendered pods would start it.

Needs PROGRAM_UNDER_TEST; everything is on loopback.
"""

from __future__ import annotations

import chart
import machine
import pytest

pytestmark = pytest.mark.skipif(not machine.BINARY, reason="PROGRAM_UNDER_TEST names no program")
TESTS = ["health", "models", "chat", "stream", "metrics"]


@pytest.mark.parametrize("path", chart.sets("valid"), ids=lambda path: path.stem)
def test_the_program_takes_the_options(path, tmp_path):
    rendered = chart.rendered(path)
    if rendered.toml().get("device") == "cuda":
        pytest.skip("resolving it needs the GPUs")
    for rank, pod in enumerate(rendered.servers()):
        folder = tmp_path / str(rank)
        group = {"LWS_WORKER_INDEX": str(rank), "LWS_LEADER_ADDRESS": "127.0.0.1"}
        container = machine.Container(rendered, pod, folder, **group)
        resolved = container.config()
        assert resolved.returncode == 0, f"{container.args}\n{resolved.stderr}"


def test_an_unknown_option_would_be_noticed(tmp_path):
    rendered = chart.render({"extraArgs": ["--no-such-option"]})
    (pod,) = rendered.servers()
    resolved = machine.Container(rendered, pod, tmp_path).config()
    assert resolved.returncode == 2 and "--no-such-option" in resolved.stderr


def test_a_pod_serves(tmp_path):
    port, grpc = machine.free_ports(2)
    values = {
        "apiKey": {"existingSecret": "keys"},
        "config": {"host": "127.0.0.1", "port": port, "grpc-port": grpc},
    }
    rendered = chart.render(values)
    (pod,) = rendered.servers()
    container = machine.Container(rendered, pod, tmp_path)
    with container.running() as process:
        probe = chart.server(pod)["readinessProbe"]
        machine.wait_until_ready(container.log, process, probe, port)
        assert machine.helm_test(rendered, port).splitlines() == [f"ok: {one}" for one in TESTS]
        process.terminate()
        assert process.wait(machine.PATIENCE) == 0, container.log.read_text()


def test_nodes_of_a_group_serve_together_and_end_together(tmp_path):
    port, grpc, meet = machine.free_ports(3)
    values = {
        "nodes": 2,
        "distSecret": {"existingSecret": "group"},
        "distPort": meet,
        "config": {"host": "127.0.0.1", "port": port, "grpc-port": grpc, "threads-per-rank": 1},
    }
    rendered = chart.render(values)
    leader, worker = [
        machine.Container(
            rendered,
            pod,
            tmp_path / str(rank),
            LWS_WORKER_INDEX=str(rank),
            LWS_LEADER_ADDRESS="localhost",
            LWS_GROUP_SIZE="2",
        )
        for rank, pod in enumerate(rendered.servers())
    ]
    with leader.running() as first, worker.running() as second:
        probe = chart.server(rendered.servers()[0])["readinessProbe"]
        machine.wait_until_ready(leader.log, first, probe, port)
        assert len(machine.helm_test(rendered, port).splitlines()) == len(TESTS)
        # What a lost node does to the pod of the other: the set recreates both.
        second.kill()
        assert first.wait(machine.PATIENCE) not in (0, 1, 2), leader.log.read_text()
