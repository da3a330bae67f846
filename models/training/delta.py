"""The gated delta rule of Qwen3.5 in plain PyTorch, in chunks, with the checkpoint's parameter names.

A head's state S decays, forgets what it holds under a key, and takes the new value: S = e^g S + k (b (v - e^g Sᵀ k))ᵀ. In a
chunk all updates come from one triangular system, so training needs matrix products alone.
"""

import torch
import torch.nn.functional as F
from torch import nn

CHUNK = 16
"""Tokens of a chunk. Few are fastest on a CPU, as most documents have some 80."""


def chunked(x, fill: int):
    """[batch, tokens, heads, ...] as [batch, heads, chunks, CHUNK, ...] in float32, with `fill` more tokens of zeros."""
    x = F.pad(x.float().transpose(1, 2), (0, 0) * (x.dim() - 3) + (0, fill))
    return x.unflatten(2, (-1, CHUNK))


def unit(x):
    """Vectors of length one."""
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def delta_rule(q, k, v, g, beta):
    """Outputs [batch, tokens, heads, size] of q, k and v of that shape, log decays and strengths [batch, tokens, heads]."""
    tokens = q.shape[1]
    q, k, v, g, beta = (chunked(x, -tokens % CHUNK) for x in (q, k, v, g, beta))
    q, k = unit(q) * q.shape[-1] ** -0.5, unit(k)
    total = g.cumsum(-1)
    later = torch.ones(CHUNK, CHUNK, dtype=torch.bool).triu(1)
    decay = (total[..., :, None] - total[..., None, :]).masked_fill(later, float("-inf")).exp()
    held = total.exp()[..., None]
    system = (k * beta[..., None]) @ k.transpose(-1, -2) * decay
    wanted = torch.cat([v, k * held], -1) * beta[..., None]
    solved = torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True)
    values, keys = solved.split((v.shape[-1], k.shape[-1]), -1)
    inside = q @ k.transpose(-1, -2) * decay
    q, k = q * held, k * (total[..., -1:] - total).exp()[..., None]
    state, outputs = None, []
    for chunk in range(q.shape[2]):
        new = values[:, :, chunk]
        if state is not None:
            new = new - keys[:, :, chunk] @ state
        output = inside[:, :, chunk] @ new
        if state is not None:
            output = output + q[:, :, chunk] @ state
        outputs.append(output)
        update = k[:, :, chunk].transpose(-1, -2) @ new
        state = update if state is None else update + state * held[:, :, chunk, -1:]
    return torch.cat(outputs, 2)[:, :, :tokens].transpose(1, 2)


class GatedNorm(nn.Module):
    """RMS norm of a head's output, times silu of its gate."""

    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x, gate):
        return F.rms_norm(x, x.shape[-1:], self.weight.float(), self.eps) * F.silu(gate.float())


class GatedDeltaNet(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.heads = (config.linear_num_key_heads, config.linear_num_value_heads)
        self.dims = (config.linear_key_head_dim, config.linear_value_head_dim)
        keys, values = (heads * dim for heads, dim in zip(self.heads, self.dims))
        self.widths = (keys, keys, values)
        hidden, taps = config.hidden_size, config.linear_conv_kernel_dim
        self.in_proj_qkv = nn.Linear(hidden, sum(self.widths), bias=False)
        self.in_proj_z = nn.Linear(hidden, values, bias=False)
        self.in_proj_b = nn.Linear(hidden, self.heads[1], bias=False)
        self.in_proj_a = nn.Linear(hidden, self.heads[1], bias=False)
        self.conv1d = nn.Conv1d(sum(self.widths), sum(self.widths), taps, groups=sum(self.widths), bias=False)
        self.dt_bias = nn.Parameter(torch.empty(self.heads[1]))
        self.A_log = nn.Parameter(torch.empty(self.heads[1]))
        self.norm = GatedNorm(self.dims[1], config.rms_norm_eps)
        self.out_proj = nn.Linear(values, hidden, bias=False)
        self.spread_decays()

    @torch.no_grad()
    def spread_decays(self) -> None:
        """Heads that forget within two tokens to heads that remember for a few hundred."""
        rates = torch.logspace(-0.3, -2.7, self.heads[1])
        self.A_log.zero_()
        self.dt_bias.copy_(rates.expm1().log())

    def convolve(self, x):
        """Each channel's sum over its last tokens, then silu. A sum of shifts, as the CPU's grouped convolution is slow."""
        taps = self.conv1d.weight[:, 0].to(x.dtype)
        back = taps.shape[1] - 1
        padded = F.pad(x, (0, 0, back, 0))
        return F.silu(sum(padded[:, tap : tap + x.shape[1]] * taps[:, tap] for tap in range(back + 1)))

    def forward(self, x):
        q, k, v = self.convolve(self.in_proj_qkv(x)).split(self.widths, -1)
        (key_heads, value_heads), (key_dim, value_dim) = self.heads, self.dims
        shared = value_heads // key_heads
        q, k = (t.unflatten(-1, (key_heads, key_dim)).repeat_interleave(shared, 2) for t in (q, k))
        g = -self.A_log.float().exp() * F.softplus(self.in_proj_a(x).float() + self.dt_bias)
        beta = self.in_proj_b(x).float().sigmoid()
        with torch.autocast("cpu", enabled=False):
            mixed = delta_rule(q, k, v.unflatten(-1, (value_heads, value_dim)), g, beta)
            mixed = self.norm(mixed, self.in_proj_z(x).unflatten(-1, (value_heads, value_dim)))
        return self.out_proj(mixed.flatten(2).to(x.dtype))
