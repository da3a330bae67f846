"""Training heads as they are used: on their own outputs, over several draft steps ("training-time test" of EAGLE-3).

Row i of step s drafts position i + s after the prefix ..i. Step 0 reads the target's conditions; step s reads the outputs
of step s - 1 at the same row, and the token one further on. A row attends to the step-0 slots up to its own and to its own
slots of the later steps.
"""

import argparse
import pathlib
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from batches import Batches
from heads import Head
from model import Llama, rotary_tables, save
from optimizer import Optimizer

DECAY = 0.8
"""Weight of a step's loss, compared with the step before."""
LOG_SECONDS = 15


class Rows:
    """Which rows of a micro-batch carry loss, step by step."""

    def __init__(self, ids: torch.Tensor, mask: torch.Tensor, steps: int):
        self.ids, mask = F.pad(ids, (0, steps - 1)), F.pad(mask, (0, steps - 1))
        width = self.ids.shape[1]
        self.length = width - 1 - steps
        batch, before = mask[:, 1:].nonzero(as_tuple=True)
        self.labels = batch * width + before
        """Flat positions whose next token carries loss."""
        rows = [before - 1 - step for step in range(steps)]
        inside = [(row >= 0) & (row < self.length) for row in rows]
        self.chosen = [keep.nonzero()[:, 0] for keep in inside]
        """Of each step: the labels that a row predicts."""
        self.rows = [(batch * self.length + row)[keep] for row, keep in zip(rows, inside)]
        """Of each step: those rows."""


class Attend:
    """Attention of one micro-batch over all steps."""

    def __init__(self, config, length: int):
        self.config, self.length, self.step = config, length, 0
        self.keys, self.values = [], []
        rows = torch.arange(length)
        self.later = rows[None] > rows[:, None]

    def __call__(self, attention, inputs):
        q, k, v, *gate = attention.project(inputs, *rotary_tables(self.length, self.config, self.step))
        self.step += 1
        self.keys.append(k)
        self.values.append(v)
        scale = attention.head_dim**-0.5
        scores = [((q @ self.keys[0].transpose(-1, -2)) * scale).masked_fill(self.later, float("-inf"))]
        scores += [(q * key).sum(-1, keepdim=True) * scale for key in self.keys[1:]]
        weights = torch.cat(scores, -1).float().softmax(-1).to(v.dtype)
        mixed = weights[..., : self.length] @ self.values[0]
        for number, value in enumerate(self.values[1:], self.length):
            mixed = mixed + weights[..., number : number + 1] * value
        return attention.merge(mixed, *gate)


def outputs(head: Head, target: Llama, rows: Rows, condition: torch.Tensor, steps: int):
    """The head's outputs of every step, one row per slot."""
    embedded = target.model.embed_tokens(rows.ids).detach()
    attend = Attend(head.config, rows.length)
    condition = condition[:, : rows.length].float()
    for step in range(steps):
        condition = head.step(embedded[:, 1 + step : 1 + step + rows.length], condition, attend).float()
        yield condition.flatten(0, 1)[rows.rows[step]]


def arguments(description: str, head: str, minutes: float, steps: int, lr: float) -> argparse.ArgumentParser:
    """The options that both heads have."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--target", type=pathlib.Path, default="../lockstep-demo-7m")
    add("--data", default="data/train2.npz")
    add("--out", type=pathlib.Path, default=head)
    add("--init", type=pathlib.Path, help="a head to continue from, on a schedule of its own")
    add(
        "--minutes",
        type=float,
        default=minutes,
        help=f"time budget, and the length of the schedule (default: {minutes})",
    )
    add("--unroll", type=int, default=steps, help=f"draft steps (default: {steps})")
    add("--step-tokens", type=int, default=1400, help="assistant tokens per update")
    add("--micro", type=int, default=3072, help="tokens per micro-batch")
    add("--lr", type=float, default=lr, help="AdamW's rate")
    add("--muon-lr", type=float, default=0.01, help="Muon's rate")
    add("--threads", type=int, default=2)
    add("--seed", type=int, default=11)
    return parser


Loss = Callable[[Head, Llama, Rows, int], tuple[torch.Tensor, list[torch.Tensor]]]


def train(
    head: Head, target: Llama, config: dict, options: argparse.Namespace, loss: Loss, written: nn.Module | None = None
) -> None:
    """Train until the time is up, and write the head, or what it is a part of. `loss` gives the sum and, of each step, which
    guesses were right."""
    data = Batches(options.data, options.micro, options.seed, max_length=1024)
    optimizer = Optimizer(head, options.lr, options.muon_lr, options.minutes, warmup=20)
    hits, counts, tokens, logged = [0] * options.unroll, [0] * options.unroll, 0, time.time()
    while (progress := optimizer.progress()) < 1:
        batches, count = data.step(options.step_tokens)
        for ids, mask in batches:
            rows = Rows(ids, mask, options.unroll)
            with torch.autocast("cpu", torch.bfloat16):
                total, right = loss(head, target, rows, options.unroll)
            (total / count).backward()
            tokens += ids.numel()
            hits = [a + int(b.sum()) for a, b in zip(hits, right)]
            counts = [a + len(b) for a, b in zip(counts, right)]
        optimizer.step(progress)
        if time.time() - logged > LOG_SECONDS or optimizer.steps == 1:
            agreement = " ".join(f"{hit / max(count, 1):.3f}" for hit, count in zip(hits, counts))
            print(
                f"step {optimizer.steps} tokens {tokens / 1e6:.2f}M agreement {agreement} {100 * progress:.0f}%",
                flush=True,
            )
            hits, counts, logged = [0] * options.unroll, [0] * options.unroll, time.time()
    save(written or head, config, options.out)
    print(f"done: {optimizer.steps} steps, {tokens} tokens")
