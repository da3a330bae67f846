"""A server of several nodes, each in a network namespace with interfaces of its own."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import time

from client import PATIENCE, Client, Failed, until

HERE = pathlib.Path(__file__).parent
WORK = pathlib.Path("/run/check")
SECRET = WORK / "secret"
ROLES = ["serve", "scheduler", "worker", "tokenizer-manager"]


def ip(command: str) -> str:
    return subprocess.run(
        ["ip", *command.split()], check=True, capture_output=True, text=True
    ).stdout


class Network:
    """Namespaces, joined by the kernel's bridge or by wire.py, and node 0 with the client."""

    def __init__(self, nodes: int, bridged: bool = False):
        self.names = [f"node{node}" for node in range(nodes)]
        for name in self.names:
            ip(f"netns add {name}")
            ip(f"-n {name} link set lo up")
        ip("link add front type veth peer name front netns node0")
        ip("addr add 10.78.0.1/24 dev front")
        ip("-n node0 addr add 10.78.0.2/24 dev front")
        ip("link set front up")
        ip("-n node0 link set front up")
        self.wire = None
        if bridged:
            ip("link add bridge type bridge")
            ip("link set bridge up")
            for number, name in enumerate(self.names, 1):
                ip(f"link add to-{name} master bridge up type veth peer name wire netns {name}")
                ip(f"-n {name} addr add 10.77.0.{number}/24 dev wire")
                ip(f"-n {name} link set wire up")
        else:
            command = [sys.executable, HERE / "wire.py", *self.names]
            self.wire = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            assert self.wire.stdout.readline() == "ok\n"

    def set(self, command: str) -> str:
        """Has the wire do something."""
        self.wire.stdin.write(command + "\n")
        self.wire.stdin.flush()
        answer = self.wire.stdout.readline().strip()
        if answer.startswith("unknown") or not answer:
            raise Failed(f"wire: {command}: {answer or 'it ended'}")
        return answer

    def lost(self) -> int:
        return int(self.set("count").split()[1])

    def open_sockets(self) -> str:
        """Sockets that listen or are connected, but for those that the kernel closes."""
        found = ""
        for name in self.names:
            command = [
                "ip",
                "netns",
                "exec",
                name,
                "ss",
                "-Htan",
                "state",
                "listening",
                "state",
                "established",
            ]
            found += subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return found

    def close(self) -> None:
        if self.wire:
            self.wire.stdin.close()
            self.wire.wait(PATIENCE)
        for name in self.names:
            ip(f"netns del {name}")
        for link in ["bridge"] if not self.wire else []:
            ip(f"link del {link}")


class Node:
    """One node's launcher and its processes."""

    def __init__(self, program: str, node: int, options: list[str]):
        self.number = node
        self.log_path = WORK / f"log-{node}-{time.monotonic_ns()}"
        self.run_dir = WORK / f"node{node}"
        self.run_dir.mkdir(exist_ok=True)
        command = ["ip", "netns", "exec", f"node{node}", program, "serve", *options]
        command += ["--node-rank", str(node), "--run-dir", str(self.run_dir)]
        with open(self.log_path, "w") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )

    def log(self) -> str:
        return self.log_path.read_text()

    def says(self, text: str, times: int = 1, limit: float = PATIENCE) -> None:
        """Waits until its log has a text so often."""
        until(f"node {self.number} says '{text}'", lambda: self.log().count(text) >= times, limit)

    def tree(self) -> list[int]:
        """It and its children."""
        pid = self.process.pid
        return [pid, *(child for child, parent, _ in processes() if parent == pid)]

    def signal_all(self, number: int) -> None:
        """As a machine that stops, all of its processes."""
        for pid in self.tree():
            os.kill(pid, number)

    def kill(self) -> None:
        """As a machine that loses its power: nobody says goodbye, but for the kernel."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(PATIENCE)

    def exit(self, limit: float = PATIENCE) -> int:
        try:
            return self.process.wait(limit)
        except subprocess.TimeoutExpired:
            raise Failed(f"node {self.number} did not end within {limit:.0f} s") from None


class Group:
    """All nodes of a server, with the same options."""

    def __init__(self, program: str, network: Network, *options: str):
        WORK.mkdir(exist_ok=True)
        SECRET.write_text("a-secret-of-all-nodes")
        self.program = program
        self.network = network
        count = len(network.names)
        self.options = [
            *options,
            "--threads-per-rank",
            "1",
            "--host",
            "0.0.0.0",
            "--nnodes",
            str(count),
        ]
        self.options += ["--dist-init-addr", "10.77.0.1:9000", "--dist-secret-file", str(SECRET)]
        self.nodes = [self.launch(node) for node in range(count)]
        self.client = Client("10.78.0.2")

    def launch(self, node: int) -> Node:
        return Node(self.program, node, self.options)

    def ready(self, limit: float = PATIENCE) -> None:
        """Waits until it serves."""

        def serves() -> bool:
            for node in self.nodes:
                if node.process.poll() is not None:
                    raise Failed(f"node {node.number} ended with {node.process.returncode}")
            return self.client.healthy()

        until("the group serves", serves, limit)

    def stop(self) -> list[int]:
        """Ends it as an operator would; the exit codes."""
        for node in self.nodes:
            if node.process.poll() is None and node.number == 0:
                node.process.terminate()
        return [node.exit() for node in self.nodes]

    def kill(self) -> None:
        """Whatever is left, at once."""
        for node in self.nodes:
            if node.process.poll() is None:
                node.signal_all(signal.SIGCONT)
                node.kill()
        # Their children end by their own control links.
        until("all processes are gone", lambda: not processes())

    def logs(self) -> str:
        return "".join(f"--- node {node.number}\n{node.log()[-3000:]}" for node in self.nodes)


def processes() -> list[tuple[int, int, str]]:
    """Id, parent's id and command line of every process here that is no script."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if not entry.name.isdigit():
                continue
            command = (entry / "cmdline").read_text().split("\0")
            state, parent = (entry / "stat").read_text().rsplit(")", 1)[1].split()[:2]
            # Those that ended and were not waited for have no command line.
            if len(command) > 1 and command[1] in ROLES and state != "Z":
                found.append((int(entry.name), int(parent), " ".join(command)))
        except (FileNotFoundError, ProcessLookupError):
            pass
    return found


def left_behind(network: Network) -> str:
    """What a server that has ended has left; nothing, in words of its own."""
    sockets = network.open_sockets()
    files = [str(path) for path in WORK.glob("node*/*")]
    memory = [str(path) for path in pathlib.Path("/dev/shm").iterdir()]
    found = {
        "processes": processes(),
        "sockets": sockets,
        "run folders": files,
        "shared memory": memory,
    }
    return ", ".join(f"{what}: {value}" for what, value in found.items() if value)
