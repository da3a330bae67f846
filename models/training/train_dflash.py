#!/usr/bin/env python3
"""Train the DFlash model on blocks at random places: cross-entropy with the target's distributions at assistant tokens.

A place counts for less, the deeper it lies in its block, since drafts behind a wrong one are lost.

  python train_dflash.py --data data/train4.npz --out lockstep-demo-7m-dflash --minutes 12
"""

import time
from types import SimpleNamespace

import torch
import torch.nn.functional as F

from batches import Batches
from dflash import Dflash, load_dflash
from heads import configuration
from model import Llama, load, save
from optimizer import Optimizer
from unroll import LOG_SECONDS, arguments

GAMMA = 4.0
"""Places behind which a block's loss weighs an e-th."""


@torch.no_grad()
def begin(draft: Dflash) -> None:
    """Start near the last layer that is read, with layers that hardly write."""
    hidden = draft.config.hidden_size
    draft.fc.weight.mul_(0.1)[:, -hidden:] += torch.eye(hidden)
    for layer in draft.layers:
        layer.self_attn.o_proj.weight.mul_(0.1)
        layer.mlp.down_proj.weight.mul_(0.1)


def choose(mask: torch.Tensor, size: int, share: float) -> torch.Tensor:
    """Places of known tokens, the same in all texts of a batch: a share of those with loss behind them."""
    useful = F.pad(mask, (0, size)).unfold(1, size, 1)[:, 1 : mask.shape[1]].any(-1).any(0).nonzero()[:, 0]
    drawn = torch.rand(len(useful)) < share
    if not drawn.any():
        drawn[torch.randint(len(useful), (1,))] = True
    return useful[drawn]


def loss(draft: Dflash, target: Llama, ids, mask, share: float):
    """The sum of the loss, how many tokens carry it, and for each place of a block hits and tokens."""
    places = draft.size - 1
    starts = choose(mask, places, share)
    states, context = draft.read(target, ids)
    outputs = draft(target, ids, context, starts)
    behind = starts[:, None] + torch.arange(1, draft.size)
    inside = behind < ids.shape[1]
    carries = (mask[:, behind.clamp(max=ids.shape[1] - 1)] & inside).nonzero(as_tuple=True)
    text, block, place = carries
    with torch.no_grad():
        wanted = target.head(states[text, behind[block, place] - 1]).float()
        best = wanted.argmax(-1)
    guess = draft.logits(target, outputs[carries]).float()
    entropy = -(wanted.softmax(-1) * F.log_softmax(guess, -1)).sum(-1)
    weights = torch.exp(-place / GAMMA)
    right = guess.argmax(-1) == best
    hits = torch.bincount(place[right], minlength=places)
    return (weights * entropy).sum(), weights.sum(), hits, torch.bincount(place, minlength=places)


def main():
    parser = arguments(__doc__, "lockstep-demo-7m-dflash", minutes=12, steps=7, lr=2e-3)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--share", type=float, default=0.2, help="share of the places at which blocks begin")
    parser.set_defaults(step_tokens=2500, micro=2048)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    torch.set_num_threads(options.threads)
    target = load(options.target).requires_grad_(False)
    config = configuration(
        target.config,
        architectures=["DFlashDraftModel"],
        model_type="qwen3",
        num_hidden_layers=options.layers,
        num_target_layers=target.config.num_hidden_layers,
        layer_types=["full_attention"] * options.layers,
        sliding_window=None,
        use_sliding_window=False,
        tie_word_embeddings=False,
        block_size=options.unroll + 1,
        # The padding token, which no text has.
        dflash_config={"mask_token_id": 0, "target_layer_ids": [1, 3, 5]},
    )
    draft = Dflash(SimpleNamespace(**config))
    begin(draft)
    if options.init:
        draft.load_state_dict(load_dflash(options.init).state_dict())
    draft.train()
    data = Batches(options.data, options.micro, options.seed, max_length=700)
    optimizer = Optimizer(draft, options.lr, options.muon_lr, options.minutes, warmup=20)
    counts, tokens, logged = torch.zeros(2, options.unroll), 0, time.time()
    while (progress := optimizer.progress()) < 1:
        batches, _ = data.step(options.step_tokens)
        for ids, mask in batches:
            with torch.autocast("cpu", torch.bfloat16):
                total, count, *found = loss(draft, target, ids, mask, options.share)
            (total / count / len(batches)).backward()
            tokens += ids.numel()
            counts += torch.stack(found)
        optimizer.step(progress)
        if time.time() - logged > LOG_SECONDS or optimizer.steps == 1:
            agreement = " ".join(f"{hit:.3f}" for hit in (counts[0] / counts[1].clamp(min=1)).tolist())
            print(
                f"step {optimizer.steps} tokens {tokens / 1e6:.2f}M agreement {agreement} {100 * progress:.0f}%",
                flush=True,
            )
            counts, logged = torch.zeros(2, options.unroll), time.time()
    save(draft, config, options.out)
    print(f"done: {optimizer.steps} steps, {tokens} tokens")


if __name__ == "__main__":
    main()
