#!/usr/bin/env python3
"""Make a later stage's mixture of the first stage's chats: less of what the model has learned.

The second stage has all of copying, spelling and sorting. The fourth has all of counting and of longer chats, which the
third blurs.

  python reweight.py --data data              # train.npz and train.jsonl -> train2.npz
  python reweight.py --data data --stage 4    # the same -> recall.npz, which gen_tools.py mixes
"""

import argparse
import json
import pathlib

import numpy as np

from gen_data import WEIGHTS

SECOND = {  # share of a domain's documents; 1 where not named
    "arithmetic": 0.35,
    "tables": 0.4,
    "units": 0.4,
    "smalltalk": 0.4,
    "story": 0.5,
    "product": 0.35,
    "weather": 0.35,
    "poem": 0.4,
    "random": 0.25,
    "facts": 0.6,
    "counting": 0.7,
    "longctx": 0.6,
}
FOURTH = dict.fromkeys(WEIGHTS, 0.7) | {
    "counting": 1,
    "arithmetic": 0.8,
    "tables": 0.8,
    "code": 0.6,
    "story": 0.3,
    "product": 0.2,
    "weather": 0.3,
    "poem": 0.2,
    "smalltalk": 0.5,
    "random": 0.2,
    "longctx": 0.6,
    "multiturn": 1,
}
STAGES = {2: (SECOND, 700, "train2.npz"), 4: (FOURTH, 600, "recall.npz")}
"""Of each stage: shares, the most tokens of a document, and the file."""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path, default="data", help="folder of train.npz and train.jsonl")
    parser.add_argument("--stage", type=int, choices=STAGES, default=2)
    arguments = parser.parse_args()
    keep, longest, name = STAGES[arguments.stage]
    arrays = np.load(arguments.data / "train.npz")
    lengths = np.diff(arrays["offsets"])
    with open(arguments.data / "train.jsonl") as file:
        share = np.array([keep.get(json.loads(line)["domain"], 1.0) for line in file])
    kept = (np.random.default_rng(5).random(len(share)) < share) & (lengths <= longest)
    tokens = np.repeat(kept, lengths)
    offsets = np.concatenate([[0], np.cumsum(lengths[kept])])
    np.savez(arguments.data / name, ids=arrays["ids"][tokens], mask=arrays["mask"][tokens], offsets=offsets)
    print(f"{kept.sum()} documents, {offsets[-1]} tokens")


if __name__ == "__main__":
    main()
