"""What speculation accepts under greedy decoding, in float32 and without a cache: the reference of the engine's tests.

The text is the target's greedy one whatever is drafted, so it is computed once, and a round only asks how many drafted
tokens agree with it. A round at text x_0..x_{n-1}, whose last token the target has not read yet, drafts tokens n.. and
accepts the longest agreeing path; the token after it is the target's own.
"""

import torch

from dflash import Dflash
from heads import Head
from model import Llama

TREE = {"topk": 4, "steps": 3, "total": 16}
"""Branches, levels and nodes, the root included, of the tree in the goldens."""


class HeadDrafter:
    """A head on one text, read as a whole: what is drafted at a position depends on nothing behind it."""

    def __init__(self, head: Head, target: Llama, text: list[int]):
        self.head, self.target = head, target
        self.ids = torch.tensor([text])
        self.condition = head.read(target, self.ids)[1]
        self.known = head.targets()

    def start(self, n: int):
        """Tokens and conditions of the slots of a text of n tokens."""
        return self.ids[:, 1:n], self.condition[:, : n - 1]

    def run(self, tokens, condition):
        """The last slots' outputs, and their logits."""
        output = self.head(self.target.model.embed_tokens(tokens), condition)[:, -1:]
        return output, self.head.logits(self.target, output)[:, 0]

    def chain(self, n: int, steps: int) -> list[int]:
        tokens, condition = self.start(n)
        drafted = []
        for _ in range(steps):
            output, logits = self.run(tokens, condition)
            drafted.append(int(self.known[logits[0].argmax()]))
            tokens = torch.cat([tokens, torch.tensor([drafted[-1:]])], 1)
            condition = torch.cat([condition, output], 1)
        return drafted

    def first_logits(self, n: int) -> torch.Tensor:
        return self.run(*self.start(n))[1][0]

    def tree(self, n: int, topk: int, steps: int, total: int) -> list[list[int]]:
        """Paths from the root to every node of EAGLE-2's tree: each level expands the topk likeliest nodes of the one
        before, and of all nodes the total - 1 likeliest stay. Ties keep the order of growth, parents first."""
        tokens, condition = self.start(n)
        paths, scores, front = [], [], [([], 0.0)]
        for _ in range(steps):
            output, logits = self.run(tokens, condition)
            best = logits.float().log_softmax(-1).topk(topk)
            grown = [
                ([*path, int(self.known[token])], score + value, row)
                for row, (path, score) in enumerate(front)
                for token, value in zip(best.indices[row].tolist(), best.values[row].tolist())
            ]
            paths += [path for path, _, _ in grown]
            scores += [score for _, score, _ in grown]
            kept = sorted(grown, key=lambda node: -node[1])[:topk]
            rows = [row for _, _, row in kept]
            front = [(path, score) for path, score, _ in kept]
            newest = torch.tensor([path[-1:] for path, _ in front])
            tokens = torch.cat([tokens[rows], newest], 1)
            condition = torch.cat([condition[rows], output[rows]], 1)
        order = sorted(range(len(paths)), key=lambda node: -scores[node])
        return [paths[node] for node in order[: total - 1]]


class ModelDrafter:
    """A small model on one text."""

    def __init__(self, model: Llama, text: list[int]):
        self.model, self.text = model, text
        self.known = torch.arange(model.config.vocab_size)

    def first_logits(self, n: int) -> torch.Tensor:
        return self.logits(self.text[:n])

    def logits(self, tokens: list[int]) -> torch.Tensor:
        return self.model.head(self.model(torch.tensor([tokens]))[0, -1])

    def chain(self, n: int, steps: int) -> list[int]:
        tokens = self.text[:n]
        for _ in range(steps):
            tokens = [*tokens, int(self.logits(tokens).argmax())]
        return tokens[n:]


class BlockDrafter:
    """A DFlash model on one text."""

    def __init__(self, model: Dflash, target: Llama, text: list[int]):
        self.model, self.target, self.ids = model, target, torch.tensor([text])
        self.context = model.read(target, self.ids)[1]
        self.known = torch.arange(target.config.vocab_size)

    def logits(self, n: int) -> torch.Tensor:
        """Logits of all masks behind the n-th token. The context is what is known of those before it."""
        outputs = self.model(self.target, self.ids, self.context, torch.tensor([n - 1]))
        return self.model.logits(self.target, outputs)[0, 0]

    def first_logits(self, n: int) -> torch.Tensor:
        return self.logits(n)[0]

    def chain(self, n: int, steps: int) -> list[int]:
        return self.logits(n).argmax(-1)[:steps].tolist()


def agreeing(drafted: list[int], text: list[int]) -> int:
    """How many drafted tokens the text begins with."""
    count = 0
    while count < len(drafted) and drafted[count] == text[count]:
        count += 1
    return count


@torch.no_grad()
def accepted(draft, text: list[int], begin: int, end: int) -> list[int]:
    """Accepted tokens of every round: `draft(n)` gives paths after n tokens of `text`, whose output is begin..end. The
    first output token comes from the prefill, and the last round is not cut at the end of the output."""
    n, rounds = begin + 1, []
    while n < end:
        rounds.append(max(agreeing(path, text[n:]) for path in draft(n)))
        n += rounds[-1] + 1
    return rounds
