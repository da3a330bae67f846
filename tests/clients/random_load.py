#!/usr/bin/env python3
"""Loads a server at random for as long as you like, and looks for what it does not give back.

    cargo run --release -- serve --port 8000
    python tests/clients/random_load.py --minutes 60 --pid PID [--base-url http://127.0.0.1:8000]

PID is that of `lockstep serve`. Requests have shared and own beginnings, one to eight hundred
words, one or two choices, temperatures from 0 to 1.5 and some constraints; one in five is left
while it is answered. Each minute prints what requests and the prefix cache hold, and the memory of
the server's processes. At the end nothing may be held by requests or unaccounted for, and the
memory's peak in the last quarter may exceed that in the second by a twentieth at the most.
"""

import http.client
import json
import os
import pathlib
import random
import sys
import threading
import time
import urllib.parse

from checks import CHECKS, Root, arguments, check, run

WORDS = "river lamp seven cold garden paper stone quick bread under window seldom blue".split()
BEGINNINGS = [" ".join(random.Random(at).choices(WORDS, k=150)) for at in range(12)]
FIGURES = ["kv_tokens_used", "kv_window_tokens_used", "kv_tokens_cached", "kv_leaked_pages",
           "kv_states_used", "kv_leaked_states", "num_requests_running", "num_requests_waiting", "retractions_total"]


def body_of(dice):
    words = [dice.choice(BEGINNINGS)] if dice.random() < 0.6 else []
    words += dice.choices(WORDS, k=round(8 ** dice.uniform(0, 3)))
    body = {
        "prompt": " ".join(words), "max_tokens": dice.choice([1, 8, 40, 200]), "n": dice.choice([1, 1, 1, 2]),
        "temperature": dice.choice([0, 0.7, 1.5]), "seed": dice.randrange(1000), "stream": dice.random() < 0.7,
    }
    if dice.random() < 0.2:
        body |= dice.choice([{"regex": "[a-z ]{5,60}"}, {"guided_choice": ["yes", "no", "perhaps"]}])
    return body


class Load:
    """Requests of several threads, until they are told to stop."""

    def __init__(self, url, key, seed):
        self.address = urllib.parse.urlsplit(url).netloc
        self.headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
        self.seed = seed
        self.stop = threading.Event()
        self.lock = threading.Lock()
        self.count = {"answered": 0, "left": 0}
        self.wrong = []

    def worker(self, number):
        dice = random.Random(f"{self.seed} {number}")
        while not self.stop.is_set():
            try:
                self.add(self.send(body_of(dice), dice))
            except Exception as error:
                with self.lock:
                    self.wrong.append(repr(error))
                    print(f"wrong: {error!r}"[:600], flush=True)

    def add(self, outcome):
        with self.lock:
            self.count[outcome] += 1

    def send(self, body, dice):
        connection = http.client.HTTPConnection(self.address, timeout=300)
        try:
            connection.request("POST", "/v1/completions", json.dumps(body), self.headers)
            leaves = dice.random() < 0.2
            if leaves and not body["stream"]:
                # Closed behind what was sent, at some time of the answer.
                self.stop.wait(dice.uniform(0, 1))
                return "left"
            answer = connection.getresponse()
            if answer.status != 200:
                raise RuntimeError(f"{answer.status} {answer.read()[:300]} to {body}")
            if leaves:
                for _ in range(dice.randrange(1, 20)):
                    answer.readline()
                return "left"
            text = answer.read()
            assert not body["stream"] or text.rstrip().endswith(b"[DONE]"), text[-300:]
            assert b'"error"' not in text, text[-300:]
            return "answered"
        finally:
            connection.close()


def figures(root):
    """Returns the sums of the series that tell what is held."""
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(root.url).netloc, timeout=60)
    connection.request("GET", "/metrics", headers=root.headers)
    lines = connection.getresponse().read().decode().splitlines()
    connection.close()
    found = {}
    for name in FIGURES:
        values = [line.rsplit(" ", 1)[1] for line in lines if line.split("{")[0].split(" ")[0] == f"lockstep_{name}"]
        assert values, f"the server has no series lockstep_{name}"
        found[name] = sum(map(float, values))
    return found


def memory(pid):
    """Returns the MiB of a process and all below it."""
    parents, resident = {}, {}
    for folder in pathlib.Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                stat = (folder / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            parents[int(folder.name)] = int(stat[1])
            resident[int(folder.name)] = int(stat[21]) * os.sysconf("SC_PAGE_SIZE")
    if pid not in resident:
        raise SystemExit(f"there is no process {pid}")
    family = {pid}
    while more := {child for child, parent in parents.items() if parent in family} - family:
        family |= more
    return sum(resident.get(one, 0) for one in family) / 2**20


@check
def all_requests_are_answered(root, load, samples):
    assert not load.wrong, f"{len(load.wrong)} were not, the first: {load.wrong[0]}"
    assert load.count["answered"] > 0 and load.count["left"] > 0, load.count


@check
def requests_give_everything_back(root, load, samples):
    until = time.monotonic() + 120
    while (held := figures(root))["num_requests_running"] + held["num_requests_waiting"] > 0:
        assert time.monotonic() < until, held
        time.sleep(0.2)
    for name in ("kv_tokens_used", "kv_window_tokens_used", "kv_leaked_pages", "kv_states_used",
                 "kv_leaked_states"):
        assert held[name] == 0, held


@check
def memory_stays(root, load, samples):
    quarter = len(samples) // 4
    assert quarter > 0, "less than four minutes tell nothing"
    second, last = max(samples[quarter:2 * quarter]), max(samples[-quarter:])
    print(f"        {second:.0f} MiB in the second quarter, {last:.0f} in the last")
    assert last <= second * 1.05, samples


def main():
    def add(parser):
        parser.add_argument("--minutes", type=int, default=60)
        parser.add_argument("--streams", type=int, default=6)
        parser.add_argument("--seed", type=int, default=0)
        parser.add_argument("--pid", type=int, required=True, help="process of `lockstep serve`")

    a = arguments(__doc__, add)
    root, load, samples = Root(a.base_url, a.api_key), Load(a.base_url, a.api_key, a.seed), []
    workers = [threading.Thread(target=load.worker, args=(at,), daemon=True) for at in range(a.streams)]
    for worker in workers:
        worker.start()
    for minute in range(1, a.minutes + 1):
        load.stop.wait(60)
        samples.append(memory(a.pid))
        held = " ".join(f"{name}={value:.0f}" for name, value in figures(root).items())
        print(f"{minute:3} min {load.count} wrong={len(load.wrong)} {samples[-1]:.0f} MiB {held}", flush=True)
    load.stop.set()
    for worker in workers:
        worker.join()
    sys.exit(run(f"{len(CHECKS)} checks after {a.minutes} minutes", root, load, samples))


if __name__ == "__main__":
    main()
