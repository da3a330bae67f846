#!/usr/bin/env python3
"""Write the prompts of `lockstep bench speculate`: the first evaluation chats of every domain, without their answers.

They are the first lines of each domain in the eval.jsonl that gen_data.py writes by default; in the open domains no
model of the family has seen them in training.

  python bench_prompts.py --out ../../bench/src/speculate/prompts.json
"""

import argparse
import json
import pathlib
import random

from gen_data import WEIGHTS, document

HERE = pathlib.Path(__file__).resolve().parent
OUT = HERE.parents[1] / "bench" / "src" / "speculate" / "prompts.json"
# As gen_data.py has them: the seed of its evaluation chats, and how many of each domain it draws.
SEED = 1 + 1000003
DRAWN = 64


def prompts(per_domain: int) -> list[dict]:
    """Chats up to the user's last turn, by domain."""
    r = random.Random(SEED)
    found = []
    for domain in WEIGHTS:
        documents = [document(r, domain, evaluation=True) for _ in range(DRAWN)]
        found += [{"domain": domain, "messages": chat["messages"][:-1]} for chat in documents[:per_domain]]
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=OUT)
    parser.add_argument("--per-domain", type=int, default=12)
    arguments = parser.parse_args()
    lines = ",\n".join(json.dumps(prompt) for prompt in prompts(arguments.per_domain))
    arguments.out.write_text(f'{{"prompts": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
