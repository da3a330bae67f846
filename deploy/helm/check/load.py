"""Clients of a server, until they are told to stop."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading

import grpc

# Bodies that clients send in turn: one too many tokens among them, so that
# there are errors to show.
COUNT = [{"role": "user", "content": "Count from 3 to 12."}]
BODIES = [
    {"messages": COUNT, "max_tokens": 48},
    {"messages": COUNT, "max_tokens": 32, "stream": True},
    {"messages": COUNT, "max_tokens": 10**6},
    {"messages": COUNT, "max_tokens": 24, "n": 2},
    {"messages": COUNT, "max_tokens": 24, "regex": "[0-9, ]{1,40}"},
    {"messages": COUNT, "max_tokens": 24, "regex": "(?=looks ahead)"},
]


class Load:
    """`clients` that each send one request after the other; a context."""

    def __init__(self, port: int, grpc_port: int, clients: int):
        self.port, self.grpc_port = port, grpc_port
        self.stopped = threading.Event()
        self.statuses: set[int] = set()
        self.threads = [threading.Thread(target=self.client, args=(i,)) for i in range(clients)]
        self.threads.append(threading.Thread(target=self.caller))

    def client(self, number: int):
        while not self.stopped.is_set():
            number += 1
            # A server that ends meanwhile is what some tests are about.
            with contextlib.suppress(OSError, http.client.HTTPException):
                self.ask(BODIES[number % len(BODIES)], leave=number % 7 == 0)

    def ask(self, body: dict, leave: bool):
        """One request; who leaves does so before the answer's end."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            headers = {"Content-Type": "application/json"}
            connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
            answer = connection.getresponse()
            self.statuses.add(answer.status)
            answer.read(16 if leave else None)
        if answer.status == 429:
            self.stopped.wait(0.05)

    def caller(self):
        """Calls over gRPC; an empty message is sent as no bytes."""
        with grpc.insecure_channel(f"127.0.0.1:{self.grpc_port}") as channel:
            call = channel.unary_unary("/lockstep.v1.Inference/GetServerInfo")
            while not self.stopped.wait(0.2):
                with contextlib.suppress(grpc.RpcError):
                    call(b"", timeout=10)

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stopped.set()
        for thread in self.threads:
            thread.join()
