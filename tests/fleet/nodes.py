"""Servers of several nodes under delay, loss, partitions and lost nodes.

Run by `nodes`, which makes the namespaces; README.md has what is checked.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator

from client import Client, Failed, together, until
from group import WORK, Group, Network, Node, left_behind

# Limits that the server is given, seconds, and what may come on top: the errors'
# way, and a machine that is busy.
WATCHDOG = 20
SLACK = 10
# A node that cannot reach node 0 notices it by pings within this.
PINGS = 10
# Of a restart: the pause before it, weights, the meeting of ranks.
RETURN = 240
LAYOUTS = {
    "4 nodes x 1 rank": (4, ["--tp-size", "4"]),
    "2 nodes x 2 ranks": (2, ["--tp-size", "4"]),
    "3 nodes x 1 DP rank, adaptive": (
        3,
        ["--tp-size", "3", "--dp-size", "3", "--enable-dp-attention"],
    ),
    "3 nodes x 2 DP ranks, adaptive": (
        3,
        ["--tp-size", "6", "--dp-size", "6", "--enable-dp-attention"],
    ),
}
ASKED = [
    ("Count from 3 to 12.", {}),
    ("Write the 7 times table.", {}),
    ("Count from 20 to 40.", {"temperature": 0.9, "seed": 7}),
    ("Say hello.", {"temperature": 0.7, "seed": 1, "max_tokens": 60}),
    ("Count from 1 to 30.", {}),
    ("Write the 9 times table.", {"max_tokens": 80}),
]
LONG = {"max_tokens": 1900, "ignore_eos": True}
MEDIUM = {"max_tokens": 300, "ignore_eos": True}
PASSED: list[str] = []
FAILED: list[str] = []


def passed(what: str) -> None:
    PASSED.append(what)
    print(f"ok      {what}", flush=True)


def expect(holds: object, what: str) -> None:
    if not holds:
        raise Failed(what)


def answers(client: Client) -> list[dict]:
    """Answers to all prompts at once, each with the log-probability of every token."""
    jobs = [
        lambda p=prompt, f=fields: client.ask(p, **({"logprobs": True} | f))
        for prompt, fields in ASKED
    ]
    return together(jobs)


@contextlib.contextmanager
def network(nodes: int, **options) -> Iterator[Network]:
    made = Network(nodes, **options)
    try:
        yield made
    finally:
        made.close()


@contextlib.contextmanager
def group(program: str, net: Network, *options: str) -> Iterator[Group]:
    """A group that serves, and is gone afterwards."""
    made = Group(program, net, *options)
    try:
        made.ready()
        yield made
    except BaseException:
        print(made.logs(), file=sys.stderr)
        raise
    finally:
        made.kill()


def oracle(program: str, options: list[str]) -> list[dict]:
    """The same answers from the same ranks in one machine."""
    WORK.mkdir(exist_ok=True)
    log = open(WORK / "oracle", "w")
    command = [program, "serve", *options, "--threads-per-rank", "1", "--run-dir", str(WORK)]
    server = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        client = Client("127.0.0.1")
        until("the oracle serves", client.healthy)
        return answers(client)
    finally:
        server.terminate()
        server.wait(60)
        log.close()


def texts(program: str, name: str) -> None:
    """Right answers whatever the network does, and nothing left behind."""
    nodes, options = LAYOUTS[name]
    expected = oracle(program, options)
    with network(nodes) as net, group(program, net, *options) as servers:
        slow = nodes - 1
        for what, commands in [
            ("no delay", []),
            ("1 ms of delay", ["delay 1"]),
            ("5 ms of delay", ["delay 5"]),
            ("1 ms of delay and 1 % of loss", ["delay 1", "loss 0.01"]),
            (f"20 Mbit/s to node {slow}", ["delay 0", "loss 0", f"rate {slow} 20"]),
        ]:
            for command in commands:
                net.set(command)
            before = net.lost()
            start = time.monotonic()
            expect(
                answers(servers.client) == expected,
                f"{name}, {what}: other answers than on one machine",
            )
            if "loss" in what:
                expect(net.lost() > before, "nothing was lost")
            passed(
                f"{name}, {what}: answers and log-probabilities of one machine ({time.monotonic() - start:.1f} s)"
            )
        net.set(f"rate {slow} 0")
        codes = servers.stop()
        expect(codes == [0] * nodes, f"{name}: exit codes {codes}")
        left = left_behind(net)
        expect(not left, f"{name}: left behind: {left}")
        passed(f"{name}: told to stop, all end with 0 and leave nothing")


def fails(stream, what: str, limit: float) -> float:
    """Reads a stream that has to end with an error; seconds until then."""
    start = time.monotonic()
    stream.end()
    took = time.monotonic() - start
    expect(stream.error, f"{what}: the stream ended with {stream.reason} and no error")
    expect(
        stream.error["type"] == "server_error" and stream.error["message"],
        f"{what}: {stream.error}",
    )
    expect(took <= limit, f"{what}: the error came after {took:.1f} s, limit {limit} s")
    return took


def notices(node: Node, before: int, since: float, limit: float) -> float:
    """Waits until a node has given its engine up; seconds since then."""
    node.says("restart", before + 1, max(1.0, limit - (time.monotonic() - since)))
    return time.monotonic() - since


def again(servers: Group, expected: list[dict], what: str) -> None:
    start = time.monotonic()
    servers.ready(RETURN)
    expect(answers(servers.client) == expected, f"{what}: other answers afterwards")
    passed(f"{what}: serves again {time.monotonic() - start:.1f} s later, with the same answers")


def faults(program: str, name: str) -> None:
    """Partitions and lost nodes under a request, with restarts."""
    nodes, options = LAYOUTS[name]
    options = [*options, "--watchdog-timeout", str(WATCHDOG), "--max-restarts", "9"]
    with network(nodes) as net, group(program, net, *options) as servers:
        net.set("delay 1")
        expected = answers(servers.client)
        last = nodes - 1
        short_partition(net, servers, last)
        partition(net, servers, last, expected)
        stopped(servers, last, expected)
        for victim in [last, 0]:
            lost(net, servers, victim, expected)
        codes = servers.stop()
        expect(codes == [0] * nodes, f"exit codes {codes}")
        left = left_behind(net)
        expect(not left, f"left behind: {left}")
        passed("after all of this, told to stop: all end with 0 and leave nothing")


def short_partition(net: Network, servers: Group, victim: int) -> None:
    """One that heals before anybody's limit: TCP sends again, and nobody hears of it."""
    whole = servers.client.stream("Count from 1 to 30.", **MEDIUM).end().text
    stream = servers.client.stream("Count from 1 to 30.", **MEDIUM).begin()
    net.set(f"cut {victim}")
    before = int(net.set("count").split()[2])
    until("packets meet the cut", lambda: int(net.set("count").split()[2]) > before + 1)
    net.set(f"join {victim}")
    stream.end()
    expect(
        stream.error is None and stream.text == whole,
        f"a short partition changed the text: {stream.error}",
    )
    passed(f"node {victim} cut off for a moment: the stream goes on with the same text")


def partition(net: Network, servers: Group, victim: int, expected: list[dict]) -> None:
    before = [node.log().count("restart") for node in servers.nodes]
    stream = servers.client.stream("Count from 1 to 30.", **LONG).begin()
    start = time.monotonic()
    net.set(f"cut {victim}")
    took = fails(stream, "partition", WATCHDOG + SLACK)
    seen = [
        notices(node, count, start, max(PINGS, WATCHDOG) + SLACK)
        for node, count in zip(servers.nodes, before)
    ]
    told = ", ".join(f"{one:.1f}" for one in seen)
    passed(
        f"node {victim} cut off: the stream got {stream.error['code']} after {took:.1f} s, nodes gave up after {told} s"
    )
    answer = servers.client.request(
        "POST", "/v1/completions", {"model": "lockstep-demo-7m", "prompt": "a"}
    )
    expect(answer.status == 503, f"asked meanwhile: {answer.status}")
    net.set(f"join {victim}")
    again(servers, expected, "healed")


def stopped(servers: Group, victim: int, expected: list[dict]) -> None:
    """A machine that stands still, and goes on as if nothing had been."""
    node = servers.nodes[victim]
    before = [one.log().count("restart") for one in servers.nodes]
    stream = servers.client.stream("Count from 1 to 30.", **LONG).begin()
    start = time.monotonic()
    node.signal_all(signal.SIGSTOP)
    took = fails(stream, "stopped", WATCHDOG + SLACK)
    notices(servers.nodes[0], before[0], start, WATCHDOG + SLACK)
    passed(
        f"node {victim} stopped (SIGSTOP): the stream got {stream.error['code']} after {took:.1f} s"
    )
    node.signal_all(signal.SIGCONT)
    again(servers, expected, f"node {victim} goes on (SIGCONT)")


def lost(net: Network, servers: Group, victim: int, expected: list[dict]) -> None:
    """A machine that loses its power, cut off first, so that its kernel says nothing."""
    stream = servers.client.stream("Count from 1 to 30.", **LONG).begin()
    others = [node for node in servers.nodes if node.number != victim]
    before = [node.log().count("restart") for node in others]
    start = time.monotonic()
    net.set(f"cut {victim}")
    servers.nodes[victim].kill()
    if victim:
        took = fails(stream, "lost", WATCHDOG + SLACK)
        what = f"the stream got {stream.error['code']} after {took:.1f} s"
    else:
        what = "its streams broke"
    seen = [
        notices(node, count, start, max(PINGS, WATCHDOG) + SLACK)
        for node, count in zip(others, before)
    ]
    passed(
        f"node {victim} lost its power: {what}, the others gave up after {', '.join(f'{one:.1f}' for one in seen)} s"
    )
    net.set(f"join {victim}")
    servers.nodes[victim] = servers.launch(victim)
    again(servers, expected, f"node {victim} is back")


def no_restarts(program: str, name: str) -> None:
    """Without restarts every node ends by itself, with the code that says why."""
    nodes, options = LAYOUTS[name]
    with network(nodes) as net:
        for victim in [nodes - 1, 0]:
            with group(program, net, *options, "--watchdog-timeout", str(WATCHDOG)) as servers:
                stream = servers.client.stream("Count from 1 to 30.", **LONG).begin()
                start = time.monotonic()
                net.set(f"cut {victim}")
                if victim:
                    fails(stream, "partition", WATCHDOG + SLACK)
                codes, seen = [], []
                for node in servers.nodes:
                    codes.append(node.exit(max(PINGS, WATCHDOG) + SLACK))
                    seen.append(time.monotonic() - start)
                expect(all(code in (3, 5) for code in codes), f"exit codes {codes}")
                net.set(f"join {victim}")
                left = left_behind(net)
                expect(not left, f"left behind: {left}")
                passed(
                    f"node {victim} cut off without restarts: exit codes {codes} within {max(seen):.1f} s, nothing left"
                )


def speed(program: str, name: str, algorithm: str) -> None:
    """Output tokens per second by delay; printed as rows of a table."""
    nodes, options = LAYOUTS[name]
    options = [*options, *(["--speculative-algorithm", "none"] if algorithm == "none" else [])]
    for wired, delays in [("bridge", [None]), ("wire", [0, 1, 5])]:
        with network(nodes, bridged=wired == "bridge") as net, group(
            program, net, *options
        ) as servers:
            for delay in delays:
                if delay is not None:
                    net.set(f"delay {delay}")
                figures = [rate(servers.client, streams) for streams in (1, 8)]
                print(
                    json.dumps(
                        {
                            "layout": name,
                            "algorithm": algorithm,
                            "network": wired,
                            "delay_ms": delay,
                            "tokens/s": figures,
                        }
                    ),
                    flush=True,
                )


def rate(client: Client, streams: int) -> list[float]:
    """Tokens per second of three rounds, after a short one that warms up."""
    found = []
    for tokens in (8, 48, 48, 48):
        job = lambda: client.ask("Count from 1 to 30.", max_tokens=tokens, ignore_eos=True)
        start = time.monotonic()
        together([job] * streams)
        found.append(round(streams * tokens / (time.monotonic() - start), 1))
    return found[1:]


CHECKS = {"texts": texts, "faults": faults, "no-restarts": no_restarts}


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests/fleet/nodes")
    parser.add_argument("program")
    parser.add_argument("--layouts", nargs="*", choices=LAYOUTS, default=list(LAYOUTS))
    parser.add_argument("--checks", nargs="*", choices=CHECKS, default=list(CHECKS))
    parser.add_argument(
        "--speed", nargs="*", metavar="ALGORITHM", help="measure with these instead of checking"
    )
    asked = parser.parse_args()
    if asked.speed is not None:
        for name in asked.layouts:
            for algorithm in asked.speed or ["none", "EAGLE3"]:
                speed(asked.program, name, algorithm)
        return 0
    for check in asked.checks:
        for name in asked.layouts:
            try:
                CHECKS[check](asked.program, name)
            except Exception as error:
                FAILED.append(name)
                print(f"FAILED  {check}, {name}: {error}", flush=True)
                if not isinstance(error, Failed):
                    traceback.print_exc()
    print(f"{len(PASSED)} passed, {len(FAILED)} failed")
    return 1 if FAILED or not PASSED else 0


if __name__ == "__main__":
    sys.exit(main())
