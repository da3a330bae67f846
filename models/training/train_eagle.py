#!/usr/bin/env python3
"""Train the EAGLE-1/2 head: smooth L1 on the target's next state and cross-entropy with its next-token distribution, with
noise on the states it reads, as in EAGLE, and on its own outputs over further steps.

  python train_eagle.py --data data/train2.npz --out lockstep-demo-7m-eagle --minutes 8
"""

from types import SimpleNamespace

import torch
import torch.nn.functional as F

from heads import Eagle, configuration, load_head
from model import Llama, load
from unroll import DECAY, Rows, arguments, outputs, train

NOISE = 0.1
"""Width of the uniform noise on the states."""


def loss(head: Eagle, target: Llama, rows: Rows, steps: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
    with torch.no_grad():
        states = target(rows.ids).float()
        wanted_states = states.flatten(0, 1)[rows.labels]
        wanted = target.head(wanted_states).float().softmax(-1)
        states = states + (torch.rand_like(states) - 0.5) * NOISE
    total, right = 0.0, []
    for step, found in enumerate(outputs(head, target, rows, states, steps)):
        chosen = rows.chosen[step]
        guess = head.logits(target, found).float()
        regression = F.smooth_l1_loss(found, wanted_states[chosen], reduction="none").mean(-1).sum()
        entropy = -(wanted[chosen] * F.log_softmax(guess, -1)).sum()
        total = total + DECAY**step * (regression + entropy)
        right.append(guess.argmax(-1) == wanted[chosen].argmax(-1))
    return total, right


def main():
    options = arguments(__doc__, "lockstep-demo-7m-eagle", minutes=8, steps=3, lr=1e-3).parse_args()
    torch.manual_seed(options.seed)
    torch.set_num_threads(options.threads)
    target = load(options.target).requires_grad_(False)
    config = configuration(target.config, architectures=["LlamaForCausalLMEagle"], bias=True, tie_word_embeddings=True)
    head = Eagle(SimpleNamespace(**config))
    if options.init:
        head.load_state_dict(load_head(options.init).state_dict())
    train(head, target, config, options, loss)


if __name__ == "__main__":
    main()
