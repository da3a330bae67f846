"""The optimizer and its schedule, a cosine over wall-clock time."""

import math
import time

import torch


class Optimizer:
    """Muon for the layers' matrices, AdamW for tables of tokens and norms.

    Progress is the share of the time budget used, so a run ends on time on any machine.
    """

    def __init__(self, model: torch.nn.Module, lr: float, muon_lr: float, minutes: float, warmup: int = 50):
        named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
        table = lambda name: "embed" in name or "lm_head" in name
        matrices = [p for name, p in named if p.dim() == 2 and not table(name)]
        tables = [p for name, p in named if p.dim() == 2 and table(name)]
        vectors = [p for _, p in named if p.dim() != 2]  # and convolutions
        groups = [{"params": tables, "weight_decay": 0.01}, {"params": vectors, "weight_decay": 0.0}]
        self.optimizers = [
            torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), fused=True),
            torch.optim.Muon(matrices, lr=muon_lr, weight_decay=0.01, momentum=0.95, nesterov=True, ns_steps=5),
        ]
        self.base = [[group["lr"] for group in optimizer.param_groups] for optimizer in self.optimizers]
        self.parameters = [parameter for _, parameter in named]
        self.started, self.seconds, self.warmup = time.time(), minutes * 60, warmup
        self.steps, self.resumed_at = 0, 0.0

    def progress(self) -> float:
        """Share of the schedule behind us, 0 to 1."""
        spent = (time.time() - self.started) / self.seconds
        return min(1.0, self.resumed_at + (1 - self.resumed_at) * spent)

    def state(self) -> dict:
        states = [optimizer.state_dict() for optimizer in self.optimizers]
        return {"optimizers": states, "progress": self.progress(), "steps": self.steps}

    def resume(self, state: dict) -> None:
        """Continue a schedule: what is left of it is spread over this run's minutes."""
        for optimizer, saved in zip(self.optimizers, state["optimizers"]):
            optimizer.load_state_dict(saved)
        self.resumed_at, self.steps = state["progress"], state["steps"]

    def step(self, progress: float) -> None:
        """One update from the accumulated gradients, clipped to norm one."""
        self.steps += 1
        cosine = 0.5 * (1 + math.cos(math.pi * progress))
        factor = min(1, self.steps / self.warmup) * (0.02 + 0.98 * cosine)
        for optimizer, rates in zip(self.optimizers, self.base):
            for group, rate in zip(optimizer.param_groups, rates):
                group["lr"] = rate * factor
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
