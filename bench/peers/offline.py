#!/usr/bin/env python3
"""Compare prefill and decode of Lockstep, llama.cpp and transformers, paired: the engines alternate within one run.

  python offline.py --model models/1b --lockstep target/release/lockstep --llama-bin llama.cpp/build/bin --out 1b

Each repetition goes through the groups of cells; in each group every engine runs once, alone, in a process of its own,
in an order that turns round with every repetition. OUT.json keeps every sample, OUT.md the medians and ratios; both
are written after each engine's turn. Run it on a quiet machine.
"""

import argparse
import datetime
import json
import pathlib
import platform
import shlex
import sys
import time
from collections.abc import Iterator

import children
import engines
import tables
from children import Failed
from engines import CLASSES, Group, Places, Unequal

GROUPS = ["prefill:128,512", "prefill:2048", "decode:1,4,8", "decode:16,32"]
ALL = list(dict.fromkeys(engine for members in CLASSES.values() for engine in members))


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", type=pathlib.Path, required=True, help="folder of one shape made by models.py")
    add("--lockstep", type=pathlib.Path, default=pathlib.Path("target/release/lockstep"), help="the release binary")
    add("--llama-bin", type=pathlib.Path, help="folder of llama-bench and llama-batched-bench")
    add("--python", default=sys.executable, help="interpreter with torch and transformers (default: this one)")
    add("--engines", nargs="+", choices=ALL, default=CLASSES["16-bit"], metavar="ENGINE", help=f"of {', '.join(ALL)}")
    add("--cells", nargs="+", type=Group.parse, default=[Group.parse(text) for text in GROUPS], metavar="GROUP")
    add("--repeat", type=int, default=5, help="samples of each cell (default: 5)")
    add("--output-len", type=int, default=64, help="timed steps of decode (default: 64)")
    add("--timeout", type=float, default=600, help="seconds that one engine may take for a group (default: 600)")
    add("--lockstep-args", type=shlex.split, default=[], help="more options for lockstep, in one string")
    add("--out", type=pathlib.Path, required=True, help="results go to OUT.json and OUT.md")
    add("--append", action="store_true", help="add repetitions to those in OUT.json, if it is there")
    return parser.parse_args()


def visits(a: argparse.Namespace, first: int) -> Iterator[tuple[int, Group, str]]:
    """Repetition, group and engine in the order of the run; odd repetitions go through the engines backwards."""
    for repetition in range(first, first + a.repeat):
        order = a.engines[:: -1 if repetition % 2 else 1]
        for group in a.cells:
            for engine in order:
                yield repetition, group, engine


class Run:
    """All samples so far."""

    def __init__(self, a: argparse.Namespace):
        self.a = a
        self.before = children.memory_available()
        self.record = {
            "title": f"Offline comparison, {a.model.name}",
            "command": sys.argv,
            "begun": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "machine": children.machine(),
            "python": platform.python_version(),
            "threads": children.THREADS,
            "decode": {"context": engines.CONTEXT, "output_len": a.output_len},
            "others_busy_cores": children.others_busy(),
            "samples": [],
            "failures": [],
        }
        earlier = a.out.with_name(a.out.name + ".json")
        if a.append and earlier.exists():
            self.record = json.loads(earlier.read_text())
        self.first = max((sample["repetition"] + 1 for sample in self.record["samples"]), default=0)

    def visit(self, places: Places, repetition: int, group: Group, engine: str) -> str:
        """Run one engine for one group and keep what it gave; the result in words."""
        key = {"repetition": repetition, "engine": engine, "phase": group.phase}
        if self.failures(engine, group) > 1:
            return "left out, having failed twice"
        children.settle(self.before)
        busy = children.others_busy()
        try:
            ended, samples = engines.measure(places, engine, group)
        except (Failed, Unequal) as problem:
            self.record["failures"].append(key | {"cells": group.joined(), "problem": str(problem)})
            return f"failed: {problem}"
        process = {"peak_rss": ended.peak_rss, "cpu_s": ended.cpu_s, "wall_s": ended.wall_s, "others_busy_cores": busy}
        for sample in samples:
            kept = key | {"size": sample.size, "rate": sample.rate, "process": process, "raw": sample.raw}
            self.record["samples"].append(kept)
        rates = ", ".join(f"{sample.size}: {sample.rate:.1f}" for sample in samples)
        return f"{rates} tokens/s; {ended.peak_rss / 2**30:.2f} GiB, {ended.cpu_s:.0f} s CPU in {ended.wall_s:.0f} s"

    def failures(self, engine: str, group: Group) -> int:
        """How often an engine has failed in a group."""
        key = (engine, group.phase, group.joined())
        return sum((one["engine"], one["phase"], one["cells"]) == key for one in self.record["failures"])

    def write(self) -> None:
        """Both files, as far as the run has come."""
        self.a.out.parent.mkdir(parents=True, exist_ok=True)
        self.a.out.with_name(self.a.out.name + ".json").write_text(json.dumps(self.record, indent=1) + "\n")
        self.a.out.with_name(self.a.out.name + ".md").write_text(self.markdown())

    def markdown(self) -> str:
        """The tables of all classes that ran, and what failed."""
        busy = [sample["process"]["others_busy_cores"] for sample in self.record["samples"]]
        repetitions = len({sample["repetition"] for sample in self.record["samples"]})
        parts = [
            f"## {self.record['title']}",
            "",
            f"Tokens/s, median (least–most) of {repetitions}; {children.THREADS} threads. Ratios are medians of the "
            "ratios within a repetition. "
            f"Decode: {engines.CONTEXT} to {engines.CONTEXT + self.a.output_len} tokens of context. "
            f"Before each start other processes kept at most {max(busy, default=0):.2f} cores busy.",
            "",
        ]
        parts += [tables.class_table(name, members, self.record["samples"]) for name, members in CLASSES.items()]
        parts += [
            f"Failed: {failure['engine']}, {failure['phase']} {failure['cells']}."
            for failure in self.record["failures"]
        ]
        return "\n".join(part for part in parts if part is not None).rstrip() + "\n"


def main() -> None:
    """Run all visits."""
    a = arguments()
    if a.llama_bin is None and any(engine.startswith("llamacpp") for engine in a.engines):
        raise SystemExit("llama.cpp is among the engines: name its programs' folder with --llama-bin")
    for path in filter(None, (a.model / "hf", a.llama_bin, a.lockstep)):
        if not path.exists():
            raise SystemExit(f"{path} is not there")
    places = Places(a.lockstep, a.llama_bin, a.python, a.model, a.timeout, a.output_len, tuple(a.lockstep_args))
    run = Run(a)
    every = list(visits(a, run.first))
    start = time.monotonic()
    for number, (repetition, group, engine) in enumerate(every, 1):
        result = run.visit(places, repetition, group, engine)
        run.write()
        minutes = (time.monotonic() - start) / 60
        left = minutes / number * (len(every) - number)
        where = f"[{number}/{len(every)}, {minutes:.1f} min, about {left:.1f} left]"
        print(f"{where} {engine} {group.phase} {result}", flush=True)
    print(run.markdown())


if __name__ == "__main__":
    main()
