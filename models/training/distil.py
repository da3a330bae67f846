#!/usr/bin/env python3
"""Teach a hybrid what the demo model knows: first each mixer alone, then the whole.

"layers" shows every mixer the inputs of the Llama's layer in its place and asks for that layer's attention output, all in
one pass of the Llama. "whole" asks for the Llama's distribution after each of the assistant's tokens, and for the token.

  python distil.py --stage layers --data data/train3.npz --out hybrid-layers --minutes 25
  python distil.py --stage whole --data data/train3.npz --init hybrid-layers --out hybrid --minutes 40

A checkpoint is written every two minutes; --resume continues it with what is left of its schedule.
"""

import argparse
import pathlib
import time

import torch
import torch.nn.functional as F

from batches import Batches
from hybrid import CONFIG, Hybrid, dimensions, load_hybrid
from inherit import PLACES, inherit
from model import load, rotary_tables, save
from optimizer import Optimizer

LOG_SECONDS, CHECKPOINT_SECONDS = 20, 120
TOKEN_SHARE = 0.1
"""Weight of the token that the data has, beside the Llama's distribution."""
RATES = {"layers": (2e-3, 0.02), "whole": (6e-4, 0.006)}
"""AdamW's and Muon's."""


def layers_loss(ours: Hybrid, theirs, ids: torch.Tensor, mask: torch.Tensor, count: int) -> list[float]:
    """Backpropagate each mixer's squared error, as a share of the wanted output's square; returns the shares."""
    spoken, places = (ids > 0)[..., None], {place: number for number, place in enumerate(PLACES)}
    with torch.no_grad():
        x, tables = theirs.model.embed_tokens(ids), rotary_tables(ids.shape[1], theirs.config)
    turned, shares = rotary_tables(ids.shape[1], ours.config), []
    for place, layer in enumerate(theirs.model.layers):
        with torch.no_grad():
            normed = layer.input_layernorm(x)
            wanted = layer.self_attn(normed, *tables)
            x = x + wanted
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        found = ours.model.layers[places[place]].mix(normed, *turned)
        error = (((found - wanted).float() * spoken) ** 2).sum() / ((wanted.float() * spoken) ** 2).sum()
        (error * mask.sum() / count).backward()
        shares.append(error.item())
    return shares


def whole_loss(ours: Hybrid, theirs, ids: torch.Tensor, mask: torch.Tensor, count: int) -> list[float]:
    """Backpropagate the divergence from the Llama and the token's loss; returns their means and the agreement."""
    chosen = mask[:, 1:]
    with torch.no_grad():
        wanted = theirs.head(theirs(ids[:, :-1])[chosen]).float().log_softmax(-1)
    found = ours.head(ours(ids[:, :-1])[chosen]).float().log_softmax(-1)
    divergence = F.kl_div(found, wanted, reduction="sum", log_target=True)
    entropy = F.nll_loss(found, ids[:, 1:][chosen], reduction="sum")
    ((divergence + TOKEN_SHARE * entropy) / count).backward()
    agreement = (found.argmax(-1) == wanted.argmax(-1)).float().mean()
    return [divergence.item() / len(found), entropy.item() / len(found), agreement.item()]


class Run:
    """Both models, the data and the optimizer of one stage."""

    def __init__(self, options: argparse.Namespace):
        self.out, self.step_tokens = options.out, options.step_tokens
        self.loss = {"layers": layers_loss, "whole": whole_loss}[options.stage]
        self.teacher = load(options.teacher).requires_grad_(False)
        if options.init:
            self.model = load_hybrid(options.init).train()
        else:
            self.model = Hybrid(dimensions(CONFIG))
            inherit(self.model, self.teacher)
        if options.stage == "layers":
            for name, parameter in self.model.named_parameters():
                number = int(name.split(".")[2]) if ".layers." in name else None
                parameter.requires_grad_("_attn." in name and PLACES[number] is not None)
        lr, muon_lr = (given or rate for given, rate in zip((options.lr, options.muon_lr), RATES[options.stage]))
        self.optimizer = Optimizer(self.model, lr, muon_lr, options.minutes, warmup=30)
        self.data = Batches(options.data, options.micro, options.seed, max_length=options.longest)
        self.tokens, self.recent = 0, []
        if options.resume:
            saved = torch.load(options.resume, weights_only=False)
            self.model.load_state_dict(saved["model"])
            self.optimizer.resume(saved["optimizer"])
            self.data.skip(saved["documents"])

    def step(self) -> float:
        batches, count = self.data.step(self.step_tokens)
        for ids, mask in batches:
            if not mask[:, 1:].any():  # documents that were cut before the assistant's turn
                continue
            with torch.autocast("cpu", torch.bfloat16):
                self.recent.append(self.loss(self.model, self.teacher, ids, mask, count))
            self.tokens += ids.numel()
        progress = self.optimizer.progress()
        self.optimizer.step(progress)
        return progress

    def log(self, progress: float) -> None:
        means = " ".join(f"{value:.4f}" for value in torch.tensor(self.recent).mean(0).tolist())
        speed = self.tokens / (time.time() - self.optimizer.started)
        print(
            f"{time.strftime('%H:%M:%S')} step {self.optimizer.steps} tokens {self.tokens / 1e6:.2f}M losses {means}"
            f" {speed:.0f} tokens/s {100 * progress:.0f}%",
            flush=True,
        )
        self.recent = []

    def checkpoint(self) -> None:
        state = {"optimizer": self.optimizer.state(), "documents": self.data.documents}
        torch.save(state | {"model": self.model.state_dict()}, f"{self.out}-checkpoint.pt")

    def train(self) -> None:
        progress, logged, saved = 0.0, time.time(), time.time()
        while progress < 1:
            progress = self.step()
            if time.time() - logged > LOG_SECONDS or self.optimizer.steps == 1:
                self.log(progress)
                logged = time.time()
            if time.time() - saved > CHECKPOINT_SECONDS:
                self.checkpoint()
                saved = time.time()
        save(self.model, CONFIG, self.out)
        print(f"done: {self.optimizer.steps} steps, {self.tokens} tokens")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--stage", choices=RATES, required=True)
    add("--teacher", type=pathlib.Path, default="../lockstep-demo-7m")
    add("--data", default="data/train3.npz")
    add("--init", type=pathlib.Path, help="a hybrid to go on from, rather than one that inherits from the teacher")
    add("--out", type=pathlib.Path, required=True)
    add("--minutes", type=float, required=True, help="time budget, and the length of the schedule")
    add("--step-tokens", type=int, default=1200, help="assistant tokens per update")
    add("--micro", type=int, default=2048, help="tokens per micro-batch")
    add("--longest", type=int, default=700, help="tokens of a document that are read")
    add("--lr", type=float, help="AdamW's rate")
    add("--muon-lr", type=float, help="Muon's rate")
    add("--threads", type=int, default=1)
    add("--seed", type=int, default=0)
    add("--resume", help="a checkpoint; the rest of its schedule takes --minutes")
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    torch.set_num_threads(options.threads)
    Run(options).train()


if __name__ == "__main__":
    main()
