#!/usr/bin/env python3
"""Ask the target something without a server.

python chat.py "Count from 3 to 9." "Spell the word cat."
"""

import argparse
import pathlib

from tokenizers import Tokenizer

from chatml import END, render
from loading import load_target
from model import greedy


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", nargs="+")
    parser.add_argument("--model", type=pathlib.Path, default=pathlib.Path(__file__).parents[1] / "lockstep-demo-7m")
    arguments = parser.parse_args()
    model, tokenizer = load_target(arguments.model), Tokenizer.from_file(str(arguments.model / "tokenizer.json"))
    for prompt in arguments.prompts:
        ids = tokenizer.encode(render([{"role": "user", "content": prompt}], True)).ids
        output, _, _ = greedy(model, ids, 256, END)
        print(f"> {prompt}\n{tokenizer.decode([token for token in output if token != END])}\n")


if __name__ == "__main__":
    main()
