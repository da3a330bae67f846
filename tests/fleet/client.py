"""A client of one server: answers, streams, figures."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable

# Seconds that anything may take; nothing does on a machine that is not busy.
PATIENCE = 240.0


class Failed(Exception):
    """A check that did not hold."""


def until(what: str, holds: Callable[[], object], limit: float = PATIENCE):
    """Waits for a condition, and returns what it brings."""
    end = time.monotonic() + limit
    while not (found := holds()):
        if time.monotonic() > end:
            raise Failed(f"{what}: not within {limit:.0f} s")
        time.sleep(0.02)
    return found


class Client:
    """Asks `host:port`."""

    def __init__(self, host: str, port: int = 8000):
        self.address = (host, port)

    def request(self, method: str, path: str, body: dict | None = None, limit: float = PATIENCE):
        """An answer whose body has not been read."""
        connection = http.client.HTTPConnection(*self.address, timeout=limit)
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, {"Content-Type": "application/json"})
        return connection.getresponse()

    def healthy(self) -> bool:
        try:
            return self.request("GET", "/health", limit=25).status == 200
        except (OSError, http.client.HTTPException):
            return False

    def metric(self, name: str) -> float:
        text = self.request("GET", "/metrics").read().decode()
        return sum(
            float(line.rsplit(" ", 1)[1])
            for line in text.splitlines()
            if line.startswith((name + " ", name + "{"))
        )

    def ask(self, prompt: str, **fields) -> dict:
        """The only choice of an answer that is well."""
        answer = self.request("POST", "/v1/chat/completions", chat(prompt, **fields))
        body = answer.read().decode()
        if answer.status != 200:
            raise Failed(f"{answer.status}: {body}")
        return json.loads(body)["choices"][0]

    def stream(self, prompt: str, **fields) -> "Stream":
        return Stream(
            self.request("POST", "/v1/chat/completions", chat(prompt, stream=True, **fields))
        )


def chat(prompt: str, **fields) -> dict:
    messages = [{"role": "user", "content": prompt}]
    return {"model": "lockstep-demo-7m", "messages": messages, "temperature": 0} | fields


class Stream:
    """An answer as it comes."""

    def __init__(self, answer: http.client.HTTPResponse):
        if answer.status != 200:
            raise Failed(f"{answer.status}: {answer.read().decode()}")
        self.answer = answer
        self.text = ""
        self.error: dict | None = None
        self.reason: str | None = None

    def next(self) -> bool:
        """Reads an event; whether more may come."""
        while line := self.answer.readline().strip():
            if line.startswith(b":"):
                continue
            data = line.removeprefix(b"data: ")
            if data == b"[DONE]":
                return False
            event = json.loads(data)
            if "error" in event:
                self.error = event["error"]
                return True
            for choice in event["choices"]:
                self.text += choice["delta"].get("content") or ""
                self.reason = choice.get("finish_reason") or self.reason
        return not self.answer.isclosed()

    def begin(self) -> "Stream":
        """Until text has come."""
        while not self.text and self.next():
            pass
        return self

    def end(self) -> "Stream":
        """To the end."""
        while self.next():
            pass
        return self


def together(jobs: list[Callable[[], object]]) -> list:
    """What jobs bring that run at once; the first that fails fails all."""
    results: list = [None] * len(jobs)
    errors: list[BaseException] = []

    def one(place: int) -> None:
        try:
            results[place] = jobs[place]()
        except BaseException as error:  # handed to the caller
            errors.append(error)

    threads = [threading.Thread(target=one, args=[place]) for place in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results
