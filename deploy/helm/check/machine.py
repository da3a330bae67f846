"""This machine in place of a cluster: what a pod's container would run, run here."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request

import chart

BINARY = os.environ.get("PROGRAM_UNDER_TEST", "")
MODEL = chart.ROOT / "models" / "lockstep-demo-7m"
# As deploy/Containerfile has them.
IMAGE = {"LOCKSTEP_HOST": "0.0.0.0", "LOCKSTEP_PORT": "8000", "LOCKSTEP_GRPC_PORT": "8001"}
# Of nobody: a certificate of localhost that signed itself.
CERTIFICATE = pathlib.Path(__file__).parent / "certificate"
KEYS = {"api-key": "0123456789", "admin-api-key": "9876543210", "dist-secret": "0123456789abcdef"}
# Debug builds on a busy machine; nothing waits that long where all is well.
PATIENCE = 120


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody has."""
    with contextlib.ExitStack() as open_ones:
        sockets = [open_ones.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


class Container:
    """A pod's server: its files in a folder, its command line and environment."""

    def __init__(self, rendered: chart.Rendered, pod: dict, folder: pathlib.Path, **group: str):
        self.log = folder / "log"
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        container = chart.server(pod)
        self.places = {}
        for mount in container["volumeMounts"]:
            place = folder / mount["mountPath"].strip("/")
            volume = volumes[mount["name"]]
            if mount["name"] == "model" and not rendered.values["model"]["path"]:
                place = MODEL
            elif mount["name"] == "model":
                place.mkdir(parents=True)
                (place / rendered.values["model"]["path"]).symlink_to(MODEL)
            elif mount["name"] == "shm":
                continue
            else:
                place.mkdir(parents=True, exist_ok=True)
            if "configMap" in volume:
                data = rendered.one("ConfigMap", volume["configMap"]["name"])["data"]
                for name, text in data.items():
                    (place / name).write_text(text)
            if "secret" in volume:
                shutil.copytree(CERTIFICATE, place, dirs_exist_ok=True)
            for source in volume.get("projected", {}).get("sources", []):
                for item in source["secret"]["items"]:
                    (place / item["path"]).write_text(KEYS[item["path"]] + "\n")
            self.places[mount["mountPath"]] = place
        file = self.places["/etc/lockstep"] / "lockstep.toml"
        file.write_text(self.here(file.read_text()))
        given = {one["name"]: one["value"] for one in container.get("env", []) if "value" in one}
        outside = {name: value for name, value in os.environ.items() if "LOCKSTEP_" not in name}
        self.environment = outside | IMAGE | given | group
        expand = lambda found: self.environment[found[1]]
        self.args = [re.sub(r"\$\((\w+)\)", expand, self.here(arg)) for arg in container["args"]]

    def here(self, text: str) -> str:
        """The same text with the places of mounts on this machine."""
        for path, place in sorted(self.places.items(), reverse=True):
            text = re.sub(rf'(^|[="]){path}(?=[/"]|$)', rf"\g<1>{place}", text, flags=re.MULTILINE)
        return text

    def config(self) -> subprocess.CompletedProcess:
        """What the options resolve to, or why they are refused."""
        command = [BINARY, "config", *self.args[1:]]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True)

    @contextlib.contextmanager
    def running(self):
        """The process, as the pod starts it; ended however the test ends."""
        with open(self.log, "w") as log:
            process = subprocess.Popen(
                [BINARY, *self.args], env=self.environment, stdout=log, stderr=log
            )
            try:
                yield process
            finally:
                if process.poll() is None:
                    process.send_signal(signal.SIGTERM)
                process.wait(PATIENCE)

def wait_until_ready(log: pathlib.Path, process: subprocess.Popen, probe: dict, port: int):
    """Asks as the kubelet would, by the probe."""
    url = f"http://127.0.0.1:{port}{probe['httpGet']['path']}"
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()
        with contextlib.suppress(urllib.error.URLError, OSError):
            if urllib.request.urlopen(url, timeout=probe["timeoutSeconds"]).status == 200:
                return
        time.sleep(0.05)
    raise AssertionError(f"not ready:\n{log.read_text()}")


def helm_test(rendered: chart.Rendered, port: int) -> str:
    """What the pod of `helm test` says, from this machine."""
    (pod,) = rendered.of("Pod")
    container = pod["spec"]["containers"][0]
    names = {one["name"] for one in container["env"]}
    environment = dict(os.environ) | {"HOST": "127.0.0.1", "PORT": str(port)}
    if "KEY" in names:
        environment["KEY"] = KEYS["api-key"]
    done = subprocess.run(container["command"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
