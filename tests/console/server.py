"""A server of two DP ranks with adaptive depth and keys, and clients that come and go."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import pathlib
import signal
import socket
import subprocess
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ["LOCKSTEP_BINARY"]
KEY, OPERATORS_KEY = "client-0123456789", "operator-0123456789"
# Debug builds on a busy machine; nothing waits that long where all is well.
PATIENCE = 180
# Some are easy to draft and some are not, so that the depth that pays changes.
QUESTIONS = [
    "Count from 3 to 60.",
    "Who are you?",
    "What is 17 plus 25?",
    "Count from 20 to 31.",
    "Repeat: red green blue red green blue red green blue",
]


def until(holds, what: str):
    """What `holds` gives as soon as it gives something."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        with contextlib.suppress(OSError, http.client.HTTPException):
            if found := holds():
                return found
        time.sleep(0.1)
    raise AssertionError(f"not within {PATIENCE} s: {what}")


def free_port() -> int:
    """A port of loopback that nobody has."""
    with contextlib.closing(socket.socket()) as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Server:
    """The program, as a context."""

    def __init__(self, folder: pathlib.Path):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = folder / "log"
        files = {"api-key": KEY, "admin-api-key": OPERATORS_KEY}
        for name, key in files.items():
            (folder / name).write_text(key + "\n")
        self.args = [BINARY, "serve", str(ROOT / "models" / "lockstep-demo-7m")]
        self.args += ["--port", str(self.port), "--grpc-port", "0"]
        self.args += ["--tp-size", "2", "--dp-size", "2", "--enable-dp-attention"]
        self.args += ["--threads-per-rank", "1", "--max-running-requests", "8"]
        self.args += ["--speculative-algorithm", "NGRAM", "--speculative-adaptive"]
        for name in files:
            self.args += [f"--{name}-file", str(folder / name)]

    def ask(self, path: str, body: dict | None = None, key: str = KEY) -> tuple[int, str]:
        """Status and text of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
            method = "GET" if body is None else "POST"
            connection.request(method, path, body and json.dumps(body), headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    def __enter__(self):
        with self.log.open("w") as log:
            self.process = subprocess.Popen(self.args, stdout=log, stderr=log)

        def healthy():
            if self.process.poll() is not None:
                raise AssertionError(f"it ended: {self.log.read_text()}")
            return self.ask("/health")[0] == 200

        until(healthy, "healthy")
        return self

    def stop(self):
        """Ends it, at once."""
        self.process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(2)
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        self.process.wait(60)

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.stop()


class Load:
    """One client that always asks, and others that come in waves; a context."""

    def __init__(self, server: Server, others: int = 11):
        self.server = server
        self.stopped = threading.Event()
        self.wave = threading.Event()
        self.threads = [threading.Thread(target=self.client, args=(at,)) for at in range(others + 1)]
        self.threads.append(threading.Thread(target=self.tide))

    def client(self, number: int):
        for turn in itertools.count(number):
            if self.stopped.is_set():
                return
            if number > 0 and not self.wave.wait(0.2):
                continue
            question = QUESTIONS[turn % len(QUESTIONS)]
            body = {
                "messages": [{"role": "user", "content": question}],
                "max_tokens": 60 + 40 * (turn % 5),
                "temperature": 0.8 * (turn % 2),
                "ignore_eos": True,
            }
            # A server that ends meanwhile is what one test is about.
            with contextlib.suppress(OSError, http.client.HTTPException):
                self.server.ask("/v1/chat/completions", body)

    def tide(self):
        while not self.stopped.wait(5):
            (self.wave.clear if self.wave.is_set() else self.wave.set)()

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stopped.set()
        self.wave.set()
        for thread in self.threads:
            thread.join()
