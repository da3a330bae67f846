#!/usr/bin/env python3
"""Train the target on the CPU: loss on assistant tokens, cosine schedule over a time budget, checkpoint every 3 minutes.

SIGUSR1 writes a checkpoint and ends the run; --resume continues it. --init begins a further stage.

  python train_target.py --data data/train.npz --out lockstep-demo-7m --minutes 40 --compile
  python train_target.py --data data/train2.npz --out lockstep-demo-7m --minutes 40 --resume lockstep-demo-7m-checkpoint.pt
  python train_target.py --data data/train3.npz --init ../lockstep-demo-7m --out tools --minutes 50
"""

import argparse
import pathlib
import signal
import time
from types import SimpleNamespace

import torch
import torch.nn.functional as F

from batches import Batches
from chatml import END
from model import Llama, load, save
from optimizer import Optimizer

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "num_hidden_layers": 7,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "intermediate_size": 768,
    "vocab_size": 4096,
    "max_position_embeddings": 2048,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "attention_dropout": 0.0,
    "initializer_range": 0.02,
    "tie_word_embeddings": True,
    "bos_token_id": None,
    "eos_token_id": END,
    "pad_token_id": 0,
    "torch_dtype": "bfloat16",
    "use_cache": True,
}
LOG_SECONDS, CHECKPOINT_SECONDS = 15, 180


def loss_sum(model: Llama, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Summed cross-entropy over the assistant tokens of a micro-batch."""
    states, wanted = model(ids[:, :-1]), mask[:, 1:]
    return F.cross_entropy(model.head(states[wanted]).float(), ids[:, 1:][wanted], reduction="sum")


class Run:
    """Model, data and optimizer of one run, its counters, and its checkpoints."""

    def __init__(self, arguments: argparse.Namespace):
        self.out, self.step_tokens = arguments.out, arguments.step_tokens
        self.model = Llama(SimpleNamespace(**CONFIG))
        self.data = Batches(arguments.data, arguments.micro, arguments.seed)
        self.optimizer = Optimizer(self.model, arguments.lr, arguments.muon_lr, arguments.minutes)
        self.loss = torch.compile(loss_sum, dynamic=True) if arguments.compile else loss_sum
        self.tokens, self.recent_loss, self.recent_tokens = 0, 0.0, 0
        self.stopped = False
        if arguments.init:
            self.model.load_state_dict(load(arguments.init).state_dict())
        if arguments.resume:
            saved = torch.load(arguments.resume, weights_only=False)
            self.model.load_state_dict(saved["model"])
            self.optimizer.resume(saved["optimizer"])
            self.data.skip(saved["documents"])

    def stop(self, *_) -> None:
        self.stopped = True

    def step(self) -> float:
        """One update; returns the progress of the schedule."""
        batches, count = self.data.step(self.step_tokens)
        for ids, mask in batches:
            with torch.autocast("cpu", torch.bfloat16):
                loss = self.loss(self.model, ids, mask)
            loss.backward()
            self.recent_loss += loss.item()
            self.tokens += ids.numel()
        self.recent_tokens += count
        progress = self.optimizer.progress()
        for parameter in self.optimizer.parameters:
            parameter.grad.div_(count)
        self.optimizer.step(progress)
        return progress

    def log(self, progress: float) -> None:
        speed = self.tokens / (time.time() - self.optimizer.started)
        print(
            f"{time.strftime('%H:%M:%S')} step {self.optimizer.steps} documents {self.data.documents}"
            f" tokens {self.tokens / 1e6:.2f}M loss {self.recent_loss / self.recent_tokens:.4f}"
            f" {speed:.0f} tokens/s {100 * progress:.0f}%",
            flush=True,
        )
        self.recent_loss, self.recent_tokens = 0.0, 0

    def checkpoint(self) -> None:
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state(),
            "documents": self.data.documents,
        }
        torch.save(state, f"{self.out}-checkpoint.pt")

    def train(self) -> None:
        progress, logged, saved = 0.0, time.time(), time.time()
        while progress < 1 and not self.stopped:
            progress = self.step()
            if time.time() - logged > LOG_SECONDS or self.optimizer.steps == 1:
                self.log(progress)
                logged = time.time()
            if time.time() - saved > CHECKPOINT_SECONDS or self.stopped:
                self.checkpoint()
                saved = time.time()
        if not self.stopped:
            save(self.model, CONFIG, self.out)
        print(f"{'stopped' if self.stopped else 'done'}: {self.optimizer.steps} steps, {self.tokens} tokens")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--data", default="data/train.npz")
    add("--out", type=pathlib.Path, default="lockstep-demo-7m")
    add("--minutes", type=float, default=40, help="time budget, and the length of the schedule (default: 40)")
    add("--step-tokens", type=int, default=4000, help="assistant tokens per update")
    add("--micro", type=int, default=4096, help="tokens per micro-batch")
    add("--lr", type=float, default=2.5e-3, help="AdamW's rate")
    add("--muon-lr", type=float, default=0.015, help="Muon's rate")
    add("--threads", type=int, default=2)
    add("--seed", type=int, default=0)
    add("--compile", action="store_true", help="torch.compile the loss")
    add("--init", type=pathlib.Path, help="a trained target to continue from, on a schedule of its own")
    add("--resume", help="a checkpoint; the rest of its schedule takes --minutes")
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(arguments.threads)
    run = Run(arguments)
    signal.signal(signal.SIGUSR1, run.stop)
    run.train()


if __name__ == "__main__":
    main()
