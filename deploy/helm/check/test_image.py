"""The image: what its file says agrees with chart and program, and its last stage works in a
bare root file system.

The second half needs PROGRAM_UNDER_TEST, root, and DEBOOTSTRAP, which `run` finds or fetches.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import tomllib

import chart
import image
import machine
import pytest

BARE = pytest.mark.skipif(
    not (machine.BINARY and image.DEBOOTSTRAP and os.geteuid() == 0),
    reason="needs PROGRAM_UNDER_TEST, DEBOOTSTRAP and root",
)


def test_the_chart_knows_the_image():
    last = image.stages()[-1]
    user = chart.loaded().values["podSecurityContext"]
    assert last.of("USER") == [f"{user['runAsUser']}:{user['runAsGroup']}"]
    assert last.environment() == machine.IMAGE
    assert last.of("EXPOSE") == ["8000 8001"] and last.of("STOPSIGNAL") == ["SIGTERM"]
    workspace = tomllib.loads((chart.ROOT / "Cargo.toml").read_text())["workspace"]
    version = workspace["package"]["version"]
    assert chart.loaded().metadata["appVersion"] == version


def test_it_is_built_by_the_repositorys_toolchain():
    build = image.stages()[0]
    toolchain = tomllib.loads((chart.ROOT / "rust-toolchain.toml").read_text())["toolchain"]
    assert build.environment()["RUSTUP_TOOLCHAIN"] == toolchain["channel"]
    assert f"/rust:{toolchain['channel'].rsplit('.', 1)[0]}-" in build.base
    (command,) = build.of("RUN")
    assert "cargo build --release --locked --package lockstep" in command
    assert "install -D target/release/lockstep /out/lockstep" in command
    assert "--from=build /out/lockstep" in " ".join(image.stages()[-1].of("COPY"))


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    base = pathlib.Path(image.DEBOOTSTRAP).parent / "bare"
    suite = image.stages()[-1].base.rsplit(":", 1)[1].removesuffix("-slim")
    # Once more where the network failed.
    for last in (False, True):
        if not (base / "made").exists():
            shutil.rmtree(base, ignore_errors=True)
            command = [image.DEBOOTSTRAP, "--variant=minbase", suite, str(base)]
            made = subprocess.run(command, check=last, stdout=subprocess.DEVNULL)
            if made.returncode == 0:
                (base / "made").touch()
    folder = tmp_path_factory.mktemp("image")
    yield image.Root(base, folder)
    shutil.rmtree(folder)


@BARE
def test_the_image_serves_and_is_healthy(root, tmp_path):
    port, grpc = machine.free_ports(2)
    # As the image says, but for addresses that only this machine reaches.
    own = {"LOCKSTEP_HOST": "127.0.0.1", "LOCKSTEP_PORT": str(port), "LOCKSTEP_GRPC_PORT": str(grpc)}
    probe = {"httpGet": {"path": "/health"}, "timeoutSeconds": 25}
    (check,) = root.stage.of("HEALTHCHECK")
    assert check.endswith(' CMD ["healthcheck"]')
    assert root.run(["healthcheck"], **own).returncode != 0
    log = tmp_path / "log"
    with root.running(log, **own) as process:
        machine.wait_until_ready(log, process, probe, port)
        assert root.run(["healthcheck"], **own).returncode == 0
        (pod,) = chart.render({}).of("Pod")
        (container,) = pod["spec"]["containers"]
        tried = root.run(container["command"], HOST="127.0.0.1", PORT=str(port))
        assert tried.returncode == 0, tried.stdout + tried.stderr
        owners = {line.split()[1] for line in processes(process.pid)}
        assert owners == {root.user.split(":")[0]}


@BARE
def test_the_image_has_what_the_chart_runs_in_it(root):
    leader, _ = chart.rendered(chart.HERE / "values" / "valid" / "nodes.yaml").servers()
    (wait,) = leader["spec"]["initContainers"]
    assert root.run(wait["command"], LWS_LEADER_ADDRESS="localhost").returncode == 0
    stop = chart.server(leader)["lifecycle"]["preStop"]["exec"]["command"]
    assert root.run([stop[0], "0"]).returncode == 0


def processes(parent: int) -> list[str]:
    """The user of each process of the server, as /proc has it."""
    children = pathlib.Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    assert children, "a server has its roles"
    return [
        next(
            line
            for line in pathlib.Path(f"/proc/{child}/status").read_text().splitlines()
            if line.startswith("Uid:")
        )
        for child in children
    ]
