"""The engines of the offline comparison: how each is run for a group of cells, and how its output is read."""

import dataclasses
import json
import pathlib
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field

import children
from children import THREADS, Ended

CONTEXT = 192
# Types in which models have their weights on disk, so that Lockstep and transformers need no option.
STORED = ["bf16", "mxfp4"]
# Types of GGUF files, of which Lockstep and llama.cpp read the same one.
FILES = ["q8_0", "q6_k", "q4_k_m", "q4_0"]
HERE = pathlib.Path(__file__).resolve().parent


class Unequal(Exception):
    """An engine did other work than asked for, so its figure may not stand beside the others."""


@dataclass(frozen=True)
class Group:
    """Cells of one phase that an engine runs in one process; sizes are prompt lengths (prefill) or batches (decode)."""

    phase: str
    sizes: tuple[int, ...]

    @staticmethod
    def parse(text: str) -> "Group":
        """Read `prefill:128,512` or `decode:1,8`."""
        phase, _, sizes = text.partition(":")
        if phase not in ("prefill", "decode") or not sizes:
            raise ValueError(f"{text}: expected prefill:LENGTH,... or decode:BATCH,...")
        return Group(phase, tuple(int(size) for size in sizes.split(",")))

    def joined(self) -> str:
        """The sizes as the engines' own options want them."""
        return ",".join(map(str, self.sizes))


@dataclass
class Sample:
    """One engine's tokens/s in one cell, with what the engine said of it."""

    size: int
    rate: float
    raw: dict = field(default_factory=dict)


@dataclass(frozen=True)
class Places:
    """Where programs and models are."""

    lockstep: pathlib.Path
    llama_bin: pathlib.Path
    python: str
    model: pathlib.Path
    timeout: float
    # Decode steps that are timed.
    output_len: int = 64
    lockstep_args: tuple[str, ...] = ()


Runner = Callable[[Places, str, Group], tuple[Ended, list[Sample]]]


def lockstep(places: Places, kind: str, group: Group) -> tuple[Ended, list[Sample]]:
    """`lockstep bench offline`, one rank of two threads; one warm-up and one sample a cell."""
    quantization = [] if kind in STORED + FILES else ["--quantization", kind]
    model = places.model / (f"{kind}.gguf" if kind in FILES else "hf")
    sizes = ["--prefill" if group.phase == "prefill" else "--batch", group.joined()]
    with tempfile.TemporaryDirectory() as folder:
        output = pathlib.Path(folder) / "report.json"
        command = [places.lockstep, "bench", "offline", "--device", "cpu", "--model-path", model]
        command += ["--tp-size", 1, "--threads-per-rank", THREADS, *quantization, *places.lockstep_args]
        command += ["--only", group.phase, *sizes, "--context", CONTEXT, "--output-len", places.output_len]
        ended = children.run([*command, "--repeat", 1, "--output", output], places.timeout)
        report = json.loads(output.read_text())
    notes = report["notes"]
    same(notes["threads per rank"], THREADS, "threads")
    same(notes["tensor-parallel ranks"], 1, "ranks")
    samples = []
    for row in report["rows"]:
        decode = row["phase"] == "decode"
        same(row["prompt"], CONTEXT if decode else row["prompt"], "context")
        samples.append(Sample(row["batch" if decode else "prompt"], row["tokens/s"], row | {"notes": notes}))
    # The program may hold more memory for a while to measure the machine; its own figure leaves that out.
    peak = round(notes["peak memory GiB"] * 2**30)
    return dataclasses.replace(ended, peak_rss=peak), samples


def llamacpp(places: Places, kind: str, group: Group) -> tuple[Ended, list[Sample]]:
    """`llama-bench` for prefill and `llama-batched-bench` for decode; both warm up by themselves."""
    model = places.model / f"{kind}.gguf"
    common = ["-m", model, "-t", THREADS, "-fa", "auto"]
    if group.phase == "prefill":
        command = [places.llama_bin / "llama-bench", *common, "-p", group.joined(), "-n", 0, "-r", 1, "-o", "json"]
        ended = children.run(command, places.timeout)
        return ended, [llama_prefill(row) for row in json.loads(ended.stdout)]
    cache = max(group.sizes) * (CONTEXT + places.output_len + 16)
    command = [places.llama_bin / "llama-batched-bench", *common, "-tb", THREADS, "-c", cache, "-b", 2048, "-ub", 512]
    command += ["-npp", CONTEXT, "-ntg", places.output_len, "-npl", group.joined(), "--output-format", "jsonl"]
    if not recurrent(places.model):
        # One prompt for all sequences: it saves time, and changes no figure.
        command.append("-pps")
    ended = children.run(command, places.timeout)
    rows = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    return ended, [llama_decode(row, places.output_len) for row in rows]


def recurrent(model: pathlib.Path) -> bool:
    """True if the model has recurrent layers, whose state llama-batched-bench cannot share between sequences."""
    config = json.loads((model / "hf" / "config.json").read_text())
    return "linear_attention" in config.get("text_config", config).get("layer_types", [])


def llama_prefill(row: dict) -> Sample:
    """A record of llama-bench."""
    same(row["n_threads"], THREADS, "threads")
    same(row["n_gen"], 0, "generated tokens")
    return Sample(row["n_prompt"], row["avg_ts"], row)


def llama_decode(row: dict, output_len: int) -> Sample:
    """A line of llama-batched-bench."""
    same(row["n_threads"], THREADS, "threads")
    same(row["n_threads_batch"], THREADS, "threads")
    same((row["pp"], row["tg"]), (CONTEXT, output_len), "tokens")
    return Sample(row["pl"], row["speed_tg"], row)


def transformers(places: Places, kind: str, group: Group) -> tuple[Ended, list[Sample]]:
    """`torch_worker.py` in a process of its own; it makes bf16 of MXFP4."""
    if kind not in STORED:
        raise Unequal(f"type: transformers runs {' and '.join(STORED)}, not {kind}")
    command = [places.python, HERE / "torch_worker.py", places.model / "hf", group.phase, group.joined()]
    command += ["--context", CONTEXT, "--output-len", places.output_len, "--threads", THREADS]
    ended = children.run(command, places.timeout)
    first, *rows = [json.loads(line) for line in ended.stdout.splitlines()]
    about = first["about"]
    same((about["threads"], about["dtype"], about["onednn"]), (THREADS, "torch.bfloat16", True), "set-up")
    samples = []
    for row in rows:
        tokens = row["size"] * (places.output_len if group.phase == "decode" else 1)
        same(row["tokens"], tokens, "tokens")
        samples.append(Sample(row["size"], tokens / row["seconds"], row | about))
    return ended, samples


def same(found: object, wanted: object, what: str) -> None:
    """Refuse a figure of other work."""
    if found != wanted:
        raise Unequal(f"{what}: {found} where {wanted} was asked for")


RUNNERS: dict[str, Runner] = {"lockstep": lockstep, "llamacpp": llamacpp, "transformers": transformers}

# Engines by the bits of their weights: only within a class is a ratio a fair one.
CLASSES = {
    "16-bit": ["lockstep:bf16", "llamacpp:bf16", "transformers:bf16"],
    "8-bit": ["lockstep:int8", "llamacpp:q8_0"],
    "4-bit": ["lockstep:int4", "llamacpp:q4_0", "llamacpp:q4_k_m"],
    # One file for both.
    **{kind.upper(): [f"lockstep:{kind}", f"llamacpp:{kind}"] for kind in FILES},
    # Experts alone; transformers has 16 bits there, too, and all else is bf16 in all of them.
    "MXFP4": ["lockstep:mxfp4", "llamacpp:mxfp4", "transformers:mxfp4"],
}


def measure(places: Places, engine: str, group: Group) -> tuple[Ended, list[Sample]]:
    """Run `name:type` for a group; each cell must come back once."""
    name, _, kind = engine.partition(":")
    ended, samples = RUNNERS[name](places, kind, group)
    same(tuple(sample.size for sample in samples), group.sizes, "cells")
    return ended, samples
