#!/usr/bin/env python3
"""Train the hybrid's own draft layer on its own outputs, by the hybrid's next-token distribution, and write both into one
folder.

  python train_mtp.py --target hybrid --data data/train3.npz --out lockstep-demo-8m-hybrid --minutes 12
"""

import pathlib
import shutil

import torch
import torch.nn.functional as F
from torch import nn

from hybrid import CONFIG, load_hybrid
from mtp import Mtp, load_mtp
from unroll import DECAY, Rows, arguments, outputs, train


class Whole(nn.Module):
    """A target and its draft layer, with the names of the checkpoint."""

    def __init__(self, target: nn.Module, mtp: Mtp):
        super().__init__()
        self.model, self.mtp = target.model, mtp


def loss(head: Mtp, target, rows: Rows, steps: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
    with torch.no_grad():
        states = target(rows.ids).float()
        wanted = target.head(states.flatten(0, 1)[rows.labels]).float().softmax(-1)
    total, right = 0.0, []
    for step, found in enumerate(outputs(head, target, rows, states, steps)):
        chosen = rows.chosen[step]
        guess = head.logits(target, found).float()
        total = total - DECAY**step * (wanted[chosen] * F.log_softmax(guess, -1)).sum()
        right.append(guess.argmax(-1) == wanted[chosen].argmax(-1))
    return total, right


def main():
    parser = arguments(__doc__, "lockstep-demo-8m-hybrid", minutes=12, steps=4, lr=1e-3)
    parser.add_argument("--tokenizer", type=pathlib.Path, default="../lockstep-demo-7m", help="folder of the tokenizer")
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    torch.set_num_threads(options.threads)
    target = load_hybrid(options.target).requires_grad_(False)
    if options.init:
        head = load_mtp(options.init).train()
    else:
        head = Mtp(target.config)
        head.begin_as(target)
    train(head, target, CONFIG, options, loss, Whole(target, head))
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(options.tokenizer / name, options.out / name)


if __name__ == "__main__":
    main()
