#!/usr/bin/env python3
"""Train the standalone draft, a Llama of a million parameters: on the data for the first part of the time, then to match
the target's next-token distributions.

  python train_draft.py --data data/train2.npz --out lockstep-demo-1m-draft --minutes 6
"""

import argparse
import pathlib
import time
from types import SimpleNamespace

import torch
import torch.nn.functional as F

from batches import Batches
from model import Llama, load, save
from optimizer import Optimizer
from train_target import CONFIG as TARGET
from train_target import loss_sum

CONFIG = TARGET | {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 384,
}
LOG_SECONDS = 15


def distilled(model: Llama, target: Llama, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Summed cross-entropy with the target's distributions at the assistant tokens of a micro-batch."""
    wanted = mask[:, 1:]
    with torch.no_grad():
        distribution = target.head(target(ids[:, :-1])[wanted]).float().softmax(-1)
    guess = model.head(model(ids[:, :-1])[wanted]).float()
    return -(distribution * F.log_softmax(guess, -1)).sum()


def train(options: argparse.Namespace) -> None:
    model, target = Llama(SimpleNamespace(**CONFIG)), load(options.target).requires_grad_(False)
    if options.init:
        model.load_state_dict(load(options.init).state_dict())
    data = Batches(options.data, options.micro, options.seed, max_length=1024)
    optimizer = Optimizer(model, options.lr, options.muon_lr, options.minutes, warmup=20)
    recent, counted, logged = 0.0, 0, time.time()
    while (progress := optimizer.progress()) < 1:
        batches, count = data.step(options.step_tokens)
        for ids, mask in batches:
            with torch.autocast("cpu", torch.bfloat16):
                late = progress >= options.distill_from
                loss = distilled(model, target, ids, mask) if late else loss_sum(model, ids, mask)
            (loss / count).backward()
            recent += loss.item()
        counted += count
        optimizer.step(progress)
        if time.time() - logged > LOG_SECONDS or optimizer.steps == 1:
            print(f"step {optimizer.steps} loss {recent / counted:.4f} {100 * progress:.0f}%", flush=True)
            recent, counted, logged = 0.0, 0, time.time()
    save(model, CONFIG, options.out)
    print(f"done: {optimizer.steps} steps")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--target", type=pathlib.Path, default="../lockstep-demo-7m")
    add("--data", default="data/train2.npz")
    add("--out", type=pathlib.Path, default="lockstep-demo-1m-draft")
    add("--init", type=pathlib.Path, help="a draft to continue from, on a schedule of its own")
    add("--minutes", type=float, default=6, help="time budget, and the length of the schedule (default: 6)")
    add("--distill-from", type=float, default=0.4, help="share of the time after which the target teaches")
    add("--step-tokens", type=int, default=5000, help="assistant tokens per update")
    add("--micro", type=int, default=4096, help="tokens per micro-batch")
    add("--lr", type=float, default=4e-3, help="AdamW's rate")
    add("--muon-lr", type=float, default=0.02, help="Muon's rate")
    add("--threads", type=int, default=2)
    add("--seed", type=int, default=13)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    torch.set_num_threads(options.threads)
    train(options)


if __name__ == "__main__":
    main()
