#!/usr/bin/env python3
"""Compare the servers of Lockstep, llama.cpp and mistral.rs under the same load, alternating within one run.

  python serve.py --model models/1b --lockstep target/release/lockstep --llama-bin llama.cpp/build/bin --out serve

The client is `lockstep bench serve`: a closed loop of streamed completions, 128 tokens in and 128 out. Each repetition
goes through the numbers of streams; for each, every server is started alone, loaded with the same prompts, and ended.
OUT.json keeps every sample, OUT.md the medians. Run it on a quiet machine, with a Python that has `tokenizers`.

With --json-schema each server is loaded in pairs, with free answers and with answers held to the schema, and the table shows the
ratio within pairs. The schema must allow no answer of fewer than 128 tokens, such as an array with `"minItems": 99`.
"""

import argparse
import datetime
import itertools
import json
import pathlib
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator
from statistics import median

import children
import prompts
import servers
import tables
from children import Failed
from servers import NAMES, SERVERS, Programs, Server

INPUT_LEN = 128
OUTPUT_LEN = 128
WARM_UP = 4
SHOWN = ["out tok/s", "TTFT p50 ms", "TTFT p99 ms", "ITL p50 ms", "ITL p99 ms", "E2E p50 ms"]


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", type=pathlib.Path, required=True, help="folder of one shape made by models.py")
    add("--lockstep", type=pathlib.Path, default=pathlib.Path("target/release/lockstep"), help="the release binary")
    add("--llama-bin", type=pathlib.Path, help="folder of llama-server")
    add("--mistralrs", type=pathlib.Path, help="mistral.rs's program")
    add("--servers", nargs="+", choices=NAMES, default=NAMES[:2], metavar="SERVER", help=f"of {', '.join(NAMES)}")
    add("--streams", nargs="+", type=int, default=[8, 32], help="requests at once (default: 8 32)")
    add("--waves", type=int, default=3, help="requests of each stream (default: 3)")
    add("--repeat", type=int, default=5, help="samples of each cell (default: 5)")
    add("--json-schema", type=pathlib.Path, help="also measure answers in this schema, of lockstep and llamacpp")
    add("--rounds", type=int, default=1, help="pairs of loads of each started server with --json-schema (default: 1)")
    add("--timeout", type=float, default=900, help="seconds that one load may take (default: 900)")
    add("--lockstep-args", type=shlex.split, default=[], help="more options for lockstep serve, in one string")
    add("--out", type=pathlib.Path, required=True, help="results go to OUT.json and OUT.md")
    return parser.parse_args()


def loads(a: argparse.Namespace, name: str, streams: int, repetition: int) -> Iterator[dict]:
    """Start one server, load it, end it; the client's rows and what the server used.

    With a schema there are `a.rounds` pairs of rows, free answers and held ones in turn.

    Raises Failed when the server does not come up, a request fails, or an answer has not the length asked for.
    """
    programs = Programs(a.lockstep, a.llama_bin, a.mistralrs, a.model, tuple(a.lockstep_args))
    port = servers.free_port()
    family, _, kind = name.partition(":")
    server = SERVERS[family](programs, kind, streams, port)
    held_fields = servers.HELD[family](json.loads(a.json_schema.read_text())) if a.json_schema else None
    with servers.running(server, port) as process:
        for turn in range(a.rounds if a.json_schema else 1):
            # Whatever drifts within a pair is for the one in half of the pairs, and for the other in half.
            ways = ([False, True] if (turn + repetition) % 2 == 0 else [True, False]) if a.json_schema else [False]
            for held in ways:
                # Never the same prompts twice: a prefix cache would know them.
                seed = 2 * (repetition * a.rounds + turn) + held
                sample = load(a, server, streams, port, seed, held_fields if held else None)
                yield {"round": turn, "held": held} | sample | {
                    "peak_rss": servers.peak_memory(process),
                    "server_command": [str(word) for word in server.command],
                }


def load(a: argparse.Namespace, server: Server, streams: int, port: int, seed: int, fields: dict | None) -> dict:
    """The client's row of one load, whose requests have the fields too."""
    requests = streams * a.waves
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "prompts.jsonl"
        made = prompts.make(a.model / "hf", WARM_UP + requests, INPUT_LEN, seed)
        prompts.write(file, made, not server.takes_ids)
        output = pathlib.Path(folder) / "report.json"
        command = [a.lockstep, "bench", "serve", "--base-url", f"http://127.0.0.1:{port}", "--output", output]
        command += ["--concurrency", streams, "--requests", requests, "--output-len", OUTPUT_LEN]
        command += ["--warm-up", WARM_UP, "--prompts", file, *server.client]
        if fields:
            command += ["--extra-body", json.dumps(fields)]
        children.run(command, a.timeout)
        report = json.loads(output.read_text())
    sample = report["rows"][0]
    check(sample, requests, server.counts, report["notes"].get("first error"))
    return sample


def check(sample: dict, requests: int, counts: bool, error: str | None) -> None:
    """Refuse a sample with failures or answers of another length."""
    if sample["failed"] or sample["done"] != requests:
        raise Failed(f"{sample['failed']} of {requests} requests failed: {error}")
    tokens = sample["out tok/s"] / sample["req/s"]
    # A server that counts nothing may send its end, or two tokens, in a piece of its own.
    if abs(tokens - OUTPUT_LEN) > (0.01 if counts else 2):
        raise Failed(f"{tokens:.2f} output tokens a request, not {OUTPUT_LEN}")


def markdown(a: argparse.Namespace, record: dict) -> str:
    """A table with a row for each number of streams and server."""
    head = ["streams", "server", *SHOWN, "peak RSS GiB", "Lockstep / server, tokens/s"]
    head += ["in the schema / free, tokens/s"] * (a.json_schema is not None)
    lines = [f"## {record['title']}", ""]
    lines += [
        f"Median (least–most) of {a.repeat}; {children.THREADS} threads; {INPUT_LEN} tokens in, {OUTPUT_LEN} out; "
        f"closed loop, {a.waves} requests a stream. Ratios are medians of the ratios within a repetition.",
        "",
        tables.row(head),
        tables.row(["---"] * len(head)),
    ]
    for streams in a.streams:
        by = {name: chosen(record, name, streams) for name in a.servers}
        for name, samples in by.items():
            if not samples:
                continue
            shown = [tables.span([sample[column] for sample in samples], 1) for column in SHOWN]
            memory = f"{median(sample['peak_rss'] for sample in samples) / 2**30:.2f}"
            ours = f"lockstep:{'int8' if name.endswith(('int8', 'q8_0')) else 'bf16'}"
            ratio = tables.span(tables.ratios(rates(by.get(ours, [])), rates(samples)), 2)
            held = []
            if a.json_schema is not None:
                constrained = chosen(record, name, streams, True)
                held.append(tables.span(tables.ratios(rates(constrained), rates(samples)), 3))
            lines.append(tables.row([str(streams), name, *shown, memory, ratio, *held]))
    lines += ["", *(f"Failed: {failure['server']}, {failure['streams']} streams." for failure in record["failures"])]
    return "\n".join(lines).rstrip() + "\n"


def chosen(record: dict, name: str, streams: int, held: bool = False) -> list[dict]:
    """A server's samples at one number of streams, of answers that are held to the schema or free."""
    key = (name, streams, held)
    return [one for one in record["samples"] if (one["server"], one["streams"], one["held"]) == key]


def rates(samples: list[dict]) -> dict[tuple[int, int], float]:
    """Output tokens/s by repetition and round."""
    return {(sample["repetition"], sample["round"]): sample["out tok/s"] for sample in samples}


def write(a: argparse.Namespace, record: dict) -> None:
    """Both files, as far as the run has come."""
    a.out.parent.mkdir(parents=True, exist_ok=True)
    a.out.with_name(a.out.name + ".json").write_text(json.dumps(record, indent=1) + "\n")
    a.out.with_name(a.out.name + ".md").write_text(markdown(a, record))


def main() -> None:
    """Run all loads."""
    a = arguments()
    needed = {"llamacpp": a.llama_bin, "mistralrs": a.mistralrs, "lockstep": a.lockstep}
    for name in a.servers:
        if needed[name.partition(":")[0]] is None:
            raise SystemExit(f"{name} is among the servers: say where its program is (--llama-bin, --mistralrs)")
    families = {name.partition(":")[0] for name in a.servers}
    if a.json_schema and not families <= servers.HELD.keys():
        raise SystemExit(f"--json-schema is for {' and '.join(servers.HELD)}: leave the others out of --servers")
    for path in filter(None, (a.model / "hf", a.json_schema, *needed.values())):
        if not path.exists():
            raise SystemExit(f"{path} is not there")
    record = {
        "title": f"Serving comparison, {a.model.name}",
        "command": sys.argv,
        "begun": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": children.machine(),
        "samples": [],
        "failures": [],
    }
    before = children.memory_available()
    start = time.monotonic()
    for repetition in range(a.repeat):
        order = a.servers[:: -1 if repetition % 2 else 1]
        for streams, name in itertools.product(a.streams, order):
            failed = [one for one in record["failures"] if (one["server"], one["streams"]) == (name, streams)]
            if len(failed) > 1:
                continue
            children.settle(before)
            key = {"repetition": repetition, "server": name, "streams": streams}
            key["others_busy_cores"] = children.others_busy()
            said = f"[repetition {repetition + 1} of {a.repeat}, {{:.1f}} min] {name} x{streams}"
            try:
                for sample in loads(a, name, streams, repetition):
                    record["samples"].append(key | sample)
                    result = ", ".join(f"{column} {sample[column]:.1f}" for column in SHOWN)
                    minutes = (time.monotonic() - start) / 60
                    print(f"{said.format(minutes)}{' in the schema' * sample['held']}: {result}", flush=True)
            except Failed as problem:
                record["failures"].append(key | {"problem": str(problem)})
                print(f"{said.format((time.monotonic() - start) / 60)}: failed: {problem}", flush=True)
            write(a, record)
    print(markdown(a, record))


if __name__ == "__main__":
    main()
