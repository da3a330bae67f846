#!/usr/bin/env python3
"""Make the second stage's mixture: all of copying, spelling and sorting, less of what the model learns early.

python reweight.py --data data      # train.npz and train.jsonl -> train2.npz
"""

import argparse
import json
import pathlib

import numpy as np

KEEP = {  # share of a domain's documents; 1 where not named
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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path, default="data", help="folder of train.npz and train.jsonl")
    parser.add_argument("--max-length", type=int, default=700, help="longer documents are left out")
    arguments = parser.parse_args()
    arrays = np.load(arguments.data / "train.npz")
    lengths = np.diff(arrays["offsets"])
    with open(arguments.data / "train.jsonl") as file:
        share = np.array([KEEP.get(json.loads(line)["domain"], 1.0) for line in file])
    kept = (np.random.default_rng(5).random(len(share)) < share) & (lengths <= arguments.max_length)
    tokens = np.repeat(kept, lengths)
    offsets = np.concatenate([[0], np.cumsum(lengths[kept])])
    np.savez(arguments.data / "train2.npz", ids=arrays["ids"][tokens], mask=arrays["mask"][tokens], offsets=offsets)
    print(f"{kept.sum()} documents, {offsets[-1]} tokens")


if __name__ == "__main__":
    main()
