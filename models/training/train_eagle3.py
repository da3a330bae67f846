#!/usr/bin/env python3
"""Train the EAGLE-3 head on its own outputs: cross-entropy with the target's distribution over the draft vocabulary, at
assistant tokens whose likeliest token is in it.

  python train_eagle3.py --data data/train2.npz --out lockstep-demo-7m-eagle3 --minutes 12
"""

from types import SimpleNamespace

import numpy as np
import torch
import torch.nn.functional as F

from heads import Eagle3, configuration, load_head
from model import Llama, load
from unroll import DECAY, Rows, arguments, outputs, train


def draft_vocabulary(data: str, vocab: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """d2t and t2d of the `count` most frequent assistant tokens, ascending."""
    arrays = np.load(data)
    uses = np.bincount(arrays["ids"][arrays["mask"] > 0], minlength=vocab)
    chosen = np.sort(np.argsort(-uses, kind="stable")[:count])
    print(f"the draft vocabulary covers {uses[chosen].sum() / uses.sum():.2%} of the assistant tokens")
    known = torch.zeros(vocab, dtype=torch.bool)
    known[chosen] = True
    return torch.from_numpy(chosen - np.arange(count)), known


@torch.no_grad()
def begin(head: Eagle3, target: Llama) -> None:
    """Start from the last captured layer and the target's own output head."""
    hidden = head.config.hidden_size
    head.fc.weight.mul_(0.1)[:, 2 * hidden :] += torch.eye(hidden)
    head.lm_head.weight.copy_(target.model.embed_tokens.weight[head.t2d])
    head.midlayer.self_attn.o_proj.weight.mul_(0.1)
    head.midlayer.mlp.down_proj.weight.mul_(0.1)


@torch.no_grad()
def inherit(head: Eagle3, earlier: Eagle3) -> None:
    """Go on from an earlier head, also where the draft vocabularies differ."""
    rows = {int(token): row for row, token in enumerate(earlier.targets())}
    state = earlier.state_dict() | {"d2t": head.d2t, "t2d": head.t2d, "lm_head.weight": head.lm_head.weight}
    for row, token in enumerate(head.targets().tolist()):
        if token in rows:
            state["lm_head.weight"][row] = earlier.lm_head.weight[rows[token]]
    head.load_state_dict(state)


def loss(head: Eagle3, target: Llama, rows: Rows, steps: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
    states, condition = head.read(target, rows.ids)
    with torch.no_grad():
        logits = target.head(states.flatten(0, 1)[rows.labels]).float()
        wanted = logits[:, head.targets()].softmax(-1)
        best, known = wanted.argmax(-1), head.t2d[logits.argmax(-1)]
    total, right = 0.0, []
    for step, found in enumerate(outputs(head, target, rows, condition, steps)):
        chosen = rows.chosen[step]
        guess = head.logits(target, found).float()
        entropy = -(wanted[chosen] * F.log_softmax(guess, -1)).sum(-1)
        total = total + DECAY**step * (entropy * known[chosen]).sum()
        right.append((guess.argmax(-1) == best[chosen]) & known[chosen])
    return total, right


def main():
    parser = arguments(__doc__, "lockstep-demo-7m-eagle3", minutes=12, steps=5, lr=2e-3)
    parser.add_argument("--draft-vocab", type=int, default=1024)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    torch.set_num_threads(options.threads)
    target = load(options.target).requires_grad_(False)
    config = configuration(
        target.config,
        architectures=["LlamaForCausalLMEagle3"],
        draft_vocab_size=options.draft_vocab,
        tie_word_embeddings=False,
    )
    head = Eagle3(SimpleNamespace(**config))
    head.d2t, head.t2d = draft_vocabulary(options.data, config["vocab_size"], options.draft_vocab)
    begin(head, target)
    if options.init:
        inherit(head, load_head(options.init))
    train(head, target, config, options, loss)


if __name__ == "__main__":
    main()
