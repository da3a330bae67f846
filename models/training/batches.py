"""Whole documents in batches of similar length: no document sees another, padding stays under 5 %."""

import numpy as np
import torch


class Batches:
    """Micro-batches of about `tokens` tokens from the arrays that train_tokenizer.py writes.

    Documents are drawn in pools, sorted by length within a pool, and the batches of a pool shuffled. Positions start at 0
    in every document, as they do when serving.
    """

    def __init__(self, path: str, tokens: int, seed: int, pool: int = 8192, max_length: int = 1800):
        arrays = np.load(path)
        self.ids, self.mask, self.offsets = arrays["ids"], arrays["mask"], arrays["offsets"]
        self.lengths = np.minimum(np.diff(self.offsets), max_length)
        self.random = np.random.default_rng(seed)
        self.tokens, self.pool = tokens, pool
        self.order, self.at = np.empty(0, np.int64), 0
        self.queue: list[list[int]] = []
        self.documents = 0
        """Documents drawn so far."""

    def skip(self, documents: int) -> None:
        """Start a resumed run's first pass where the earlier run's last pass ended."""
        self.order = self.random.permutation(len(self.lengths))
        self.at = documents % len(self.lengths)
        self.documents += self.at

    def refill(self) -> None:
        if self.at >= len(self.order):
            self.order, self.at = self.random.permutation(len(self.lengths)), 0
        drawn = self.order[self.at : self.at + self.pool]
        self.at += self.pool
        self.documents += len(drawn)
        batch: list[int] = []
        self.queue = [batch]
        for document in drawn[np.argsort(self.lengths[drawn], kind="stable")]:
            if batch and (len(batch) + 1) * self.lengths[document] > self.tokens:
                batch = []
                self.queue.append(batch)
            batch.append(document)
        self.random.shuffle(self.queue)

    def next(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Token ids and assistant mask, both [documents, tokens]."""
        if not self.queue:
            self.refill()
        documents = self.queue.pop()
        shape = (len(documents), int(max(self.lengths[d] for d in documents)))
        ids, mask = np.zeros(shape, np.int64), np.zeros(shape, bool)
        for row, document in enumerate(documents):
            length, start = self.lengths[document], self.offsets[document]
            ids[row, :length] = self.ids[start : start + length]
            mask[row, :length] = self.mask[start : start + length]
        return torch.from_numpy(ids), torch.from_numpy(mask)

    def step(self, loss_tokens: int) -> tuple[list[tuple[torch.Tensor, torch.Tensor]], int]:
        """Micro-batches with at least `loss_tokens` assistant tokens in all, and how many they have."""
        batches, count = [], 0
        while count < loss_tokens:
            batches.append(self.next())
            count += int(batches[-1][1].sum())
        return batches, count
