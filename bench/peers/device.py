#!/usr/bin/env python3
"""Time torch on a GPU over the shapes of a model: what `lockstep bench device` measures.

  python device.py MODEL_DIR --output torch.json

MODEL_DIR needs a config.json alone; weights and caches are random. Every figure is taken of replays of a CUDA graph
by CUDA events, a median of five with the extremes, and data used in turn are far larger than the L2 cache. Attention
is scaled_dot_product_attention over a contiguous cache, where the server's is paged. It needs torch and a GPU.

It has been run on no GPU yet: only its arithmetic was tested, by test_peers.py.
"""

import argparse
import json
import math
import pathlib
import statistics

ROWS = "1,8,16,32,64,512"
ATTENTION = "1x1024,64x1024,64x4096"


def shapes(config: dict) -> list[tuple[str, int, int]]:
    """Name, outputs and inputs of a layer's products, and of the head."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    kv_heads, width = config.get("num_key_value_heads", heads), config.get("head_dim") or hidden // heads
    mlp = config["intermediate_size"]
    return [
        ("qkv", (heads + 2 * kv_heads) * width, hidden),
        ("o", hidden, heads * width),
        ("gate_up", 2 * mlp, hidden),
        ("down", hidden, mlp),
        ("lm_head", config["vocab_size"], hidden),
    ]


def turns(size: int, working_set: int) -> int:
    """How many arrays of so many bytes are used in turn."""
    return min(max(math.ceil(working_set / max(size, 1)), 2), 64)


def requests(text: str) -> list[tuple[int, int]]:
    """64x1024,1x16: requests and the cached tokens of each."""
    return [tuple(int(number) for number in part.split("x")) for part in text.split(",")]


def line(kernel: str, size: str, seconds: list[float], amounts: tuple[float, float], ceilings: dict) -> dict:
    """A measured kernel, with the columns of `lockstep bench device`; amounts are bytes and operations."""
    middle, (moved, operations) = statistics.median(seconds), amounts
    return {
        "kernel": kernel,
        "size": size,
        "us": middle * 1e6,
        "min us": min(seconds) * 1e6,
        "max us": max(seconds) * 1e6,
        "GB/s": moved / middle * 1e-9,
        "TFLOP/s": operations / middle * 1e-12,
        "of copy": moved / middle / ceilings["copy"],
        "of product": operations / middle / ceilings["product"],
    }


class Device:
    """A GPU by torch."""

    def __init__(self, repeat: int, working_set: int):
        import torch

        self.torch, self.repeat, self.working_set = torch, repeat, working_set

    def random(self, *size: int, scale: float = 1.0):
        """bf16 numbers around zero."""
        return self.torch.randn(*size, device="cuda", dtype=self.torch.bfloat16) * scale

    def events(self, work) -> float:
        """Seconds of work between two events, behind a copy that lets the host get ahead."""
        torch = self.torch
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        ahead = torch.empty(self.working_set, dtype=torch.uint8, device="cuda")
        ahead.clone()
        begin.record()
        work()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e-3

    def times(self, calls: list) -> list[float]:
        """Seconds of a call, of several that are replayed as one graph."""
        torch = self.torch
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for call in calls:
                call()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for call in calls:
                call()
        graph.replay()
        torch.cuda.synchronize()
        return [self.events(graph.replay) / len(calls) for _ in range(self.repeat)]

    def ceilings(self, peak: int) -> dict:
        """Bytes copied, read and written, and operations of a large product, a second."""
        torch = self.torch
        source = torch.randint(0, 255, (self.working_set,), dtype=torch.uint8, device="cuda")
        target = torch.empty_like(source)
        copied = statistics.median(self.times([lambda: target.copy_(source)] * 2))
        a, b = self.random(peak, peak), self.random(peak, peak)
        multiplied = statistics.median(self.times([lambda: torch.mm(a, b)] * 2))
        return {"copy": 2 * self.working_set / copied, "product": 2 * peak**3 / multiplied}

    def product(self, of: tuple[str, int, int], rows: list[int], ceilings: dict) -> list[dict]:
        """A product of the model for each number of rows."""
        torch, (name, outputs, inputs) = self.torch, of
        size = 2 * outputs * inputs
        weights = [self.random(outputs, inputs, scale=inputs**-0.5) for _ in range(turns(size, self.working_set))]
        lines = []
        for count in rows:
            x = self.random(count, inputs)
            seconds = self.times([lambda w=w: torch.nn.functional.linear(x, w) for w in weights])
            amounts = (size + 2 * count * (inputs + outputs), 2 * count * outputs * inputs)
            lines.append(line(f"product {name}", f"{count} x {inputs} x {outputs}", seconds, amounts, ceilings))
        return lines

    def attention(self, config: dict, of: tuple[int, int], ceilings: dict) -> dict:
        """One new token of each request over its cached ones."""
        torch, (count, cached) = self.torch, of
        heads = config["num_attention_heads"]
        kv_heads, width = config.get("num_key_value_heads", heads), shapes(config)[1][2] // heads
        size = 4 * count * (cached + 1) * kv_heads * width
        shape = (count, kv_heads, cached + 1, width)
        caches = [(self.random(*shape), self.random(*shape)) for _ in range(turns(size, self.working_set))]
        query = self.random(count, heads, 1, width)
        attend = torch.nn.functional.scaled_dot_product_attention
        calls = [lambda k=k, v=v: attend(query, k, v, enable_gqa=kv_heads < heads) for k, v in caches]
        amounts = (size, 4 * count * (cached + 1) * heads * width)
        return line("attention decode", f"{count} x {cached}", self.times(calls), amounts, ceilings)


def main() -> None:
    """Measure, print a line for each figure, and write all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--rows", default=ROWS)
    parser.add_argument("--attention", default=ATTENTION)
    parser.add_argument("--peak", type=int, default=8192)
    parser.add_argument("--working-set", type=int, default=1024, help="MiB that data used in turn add up to")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--output", type=pathlib.Path)
    a = parser.parse_args()
    config = json.loads((a.model / "config.json").read_text())
    device = Device(a.repeat, a.working_set << 20)
    ceilings = device.ceilings(a.peak)
    rows = [int(row) for row in a.rows.split(",")]
    lines = [found for of in shapes(config) for found in device.product(of, rows, ceilings)]
    lines += [device.attention(config, of, ceilings) for of in requests(a.attention)]
    torch = device.torch
    about = {"torch": torch.__version__, "cuda": torch.version.cuda, "gpu": torch.cuda.get_device_name()}
    whole = {"about": about, "ceilings": ceilings, "rows": lines}
    for found in lines:
        print(json.dumps(found), flush=True)
    if a.output:
        a.output.write_text(json.dumps(whole, indent=2) + "\n")


if __name__ == "__main__":
    main()
