"""Two replicas behind a gateway, one restarted at a time under streams: none may fail.

Run by `rolling`, which makes the namespaces; README.md has what is checked.
"""

from __future__ import annotations

import argparse
import http.client
import pathlib
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter

from client import PATIENCE, Client, Failed, until
from proxies import PROXIES, TOLD

WORK = pathlib.Path("/run/rolling")
PROMPTS = [f"Count from {first} to {first + 20}." for first in range(1, 9)]
FIELDS = {"max_tokens": 100}


class Replica:
    """One server, which may be ended and started anew."""

    def __init__(self, program: str, number: int):
        self.program = program
        self.number = number
        self.ports = {"port": 8000 + 10 * number, "sglang": 8002 + 10 * number}
        self.client = Client("127.0.0.1", self.ports["port"])
        self.log = open(WORK / f"replica{number}", "a")
        self.start()

    def start(self) -> None:
        port, sglang = map(str, self.ports.values())
        command = [
            self.program,
            "serve",
            "--tp-size",
            "1",
            "--threads-per-rank",
            "1",
            "--port",
            port,
        ]
        command += ["--sglang-grpc-port", sglang, "--run-dir", str(WORK), "--drain-timeout", "120"]
        self.process = subprocess.Popen(
            command, stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL
        )

    def restart(self) -> float:
        """As an orchestrator does, which waits for the end and then for `/health`; seconds."""
        begin = time.monotonic()
        self.process.terminate()
        code = self.process.wait(PATIENCE)
        if code != 0:
            raise Failed(f"replica {self.number} ended with {code}")
        self.start()
        until(f"replica {self.number} serves", self.client.healthy)
        return time.monotonic() - begin


class Load:
    """Streams, each asking again as soon as it has its answer."""

    def __init__(self, client: Client, expected: dict[str, str], streams: int):
        self.client = client
        self.expected = expected
        self.stopping = threading.Event()
        self.lock = threading.Lock()
        self.done = 0
        self.failures: Counter[str] = Counter()
        self.threads = [threading.Thread(target=self.run, args=[place]) for place in range(streams)]
        for thread in self.threads:
            thread.start()

    def run(self, place: int) -> None:
        while not self.stopping.is_set():
            prompt = PROMPTS[place % len(PROMPTS)]
            place += 1
            why = self.one(prompt)
            with self.lock:
                self.done += 1
                if why:
                    self.failures[why] += 1
            if why:
                # A gateway that refuses everything is not asked a thousand times a second.
                self.stopping.wait(0.2)

    def one(self, prompt: str) -> str | None:
        """Why a request failed."""
        try:
            stream = self.client.stream(prompt, **FIELDS).end()
        except (Failed, OSError, http.client.HTTPException, ValueError) as error:
            return f"{type(error).__name__}: {error}"[:300]
        if stream.error:
            return f"in the stream: {stream.error}"
        if not stream.reason:
            return "the stream broke off"
        return None if stream.text == self.expected[prompt] else f"another text: {stream.text!r}"

    def count(self) -> int:
        with self.lock:
            return self.done

    def stop(self) -> None:
        self.stopping.set()
        for thread in self.threads:
            thread.join()


def served(replica: Replica) -> float:
    """Requests that a replica has finished since it started, over HTTP and gRPC."""
    return replica.client.metric("lockstep_requests_total")


def roll(program: str, name: str, rounds: int, streams: int) -> bool:
    """Whether no request failed."""
    replicas = [Replica(program, number) for number in (0, 1)]
    proxy = None
    try:
        for replica in replicas:
            until(f"replica {replica.number} serves", replica.client.healthy)
        expected = {
            prompt: replicas[0].client.ask(prompt, **FIELDS)["message"]["content"]
            for prompt in PROMPTS
        }
        port = 30000
        with open(WORK / "proxy", "w") as log:
            command = PROXIES[name](WORK, port, [replica.ports for replica in replicas])
            proxy = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        front = Client("127.0.0.1", port)
        until(f"{name} answers", lambda: answers(front))
        load = Load(front, expected, streams)
        try:
            # A moment of load before, between and after restarts: each client has had
            # an answer, on average, since the last one.
            for _ in range(rounds):
                for replica in replicas:
                    goal = load.count() + streams
                    until("answers come", lambda: load.count() >= goal)
                    tell = TOLD.get(name, lambda *_: None)
                    tell(WORK, replica.number, False)
                    took = replica.restart()
                    tell(WORK, replica.number, True)
                    print(
                        f"        replica {replica.number} anew after {took:.1f} s, {load.count()} requests so far, "
                        f"{sum(load.failures.values())} failed",
                        flush=True,
                    )
                    until(f"replica {replica.number} has work again", lambda: working(replica))
            goal = load.count() + streams
            until("answers come", lambda: load.count() >= goal)
        finally:
            load.stop()
        failed = sum(load.failures.values())
        print(
            f"{'FAILED ' if failed else 'ok     '} {name}: {2 * rounds} restarts under {streams} streams, "
            f"{load.done} requests, {failed} failed",
            flush=True,
        )
        for why, times in load.failures.most_common(8):
            print(f"        {times} times: {why}")
        return not failed
    finally:
        for process in [proxy, *(replica.process for replica in replicas)]:
            if process and process.poll() is None:
                process.terminate()
                process.wait(PATIENCE)


def answers(client: Client) -> bool:
    """Whether a gateway has somebody who answers."""
    try:
        return bool(client.ask(PROMPTS[0], max_tokens=1))
    except (Failed, OSError, http.client.HTTPException, ValueError):
        return False


def working(replica: Replica) -> bool:
    """Whether the gateway sends it requests."""
    return replica.client.metric("lockstep_num_requests_running") > 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests/fleet/rolling")
    parser.add_argument("program")
    parser.add_argument("--proxies", nargs="*", choices=PROXIES, default=list(PROXIES))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--streams", type=int, default=32)
    asked = parser.parse_args()
    WORK.mkdir(parents=True)
    results = []
    for name in asked.proxies:
        if not shutil.which(name.split()[0]):
            print(f"skipped {name}: not installed")
            continue
        try:
            results.append(roll(asked.program, name, asked.rounds, asked.streams))
        except Failed as error:
            print(f"FAILED  {name}: {error}")
            for log in ["proxy", "replica0", "replica1"]:
                print(f"--- {log}\n{(WORK / log).read_text()[-1500:]}")
            results.append(False)
    print(f"{results.count(True)} passed, {results.count(False)} failed")
    return 0 if results and all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
