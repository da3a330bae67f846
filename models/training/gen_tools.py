#!/usr/bin/env python3
"""Write the third and fourth stage's data: chats that call tools and answers in JSON, mixed with the earlier chats.

The new chats are tools.jsonl too, and those for evaluation tools-eval.jsonl. Held out is what gen_data.py holds out:
questions whose crc32 is a multiple of 40.

  python gen_tools.py --data data                                                           # train2.npz -> train3.npz
  python gen_tools.py --data data --earlier recall.npz --share 0.3 --out train4.npz
"""

import argparse
import json
import pathlib
import random

import numpy as np
from tokenizers import Tokenizer

from chatml import render
from gen_data import DOMAINS, SYSTEM, casual, held_out, turn
from synthetic.answers import json_answer
from synthetic.tools import Offer, exchange, offers
from train_tokenizer import encode

WEIGHTS = {"call": 62, "nocall": 13, "json": 25}
ASIDE = ["counting", "smalltalk", "facts", "arithmetic", "tables", "reversing"]
"""Domains whose questions no tool answers."""
EVALUATED = ["call", "result", "nocall", "json"]


def tool_turn(r: random.Random, offered: list[Offer], evaluation: bool) -> list[dict]:
    """A question for one of the tools offered, of the right side of the split, and all that follows from it."""
    while True:
        offer = r.choice(offered)
        case = offer.kind.case(r)
        if held_out(case.user) == evaluation:
            if not evaluation:
                case = case._replace(user=casual(r, case.user))
            return exchange(offer, case)


def plain_turn(r: random.Random, domain: str, evaluation: bool) -> list[dict]:
    user, answer = turn(r, domain, evaluation)
    user = user if evaluation else casual(r, user)
    return [{"role": "user", "content": user}, {"role": "assistant", "content": answer}]


def json_turn(r: random.Random, evaluation: bool) -> list[dict]:
    while True:
        user, answer = json_answer(r)
        if held_out(user) == evaluation:
            return [{"role": "user", "content": user}, {"role": "assistant", "content": answer}]


def document(r: random.Random, domain: str, evaluation: bool = False) -> dict:
    """One chat: "call" ends with the answer after a tool's result, in evaluation with the call; "result" is for evaluation
    alone and ends with that answer; "nocall" offers tools and asks for something else; "json" answers in JSON."""
    messages = [{"role": "system", "content": r.choice(SYSTEM)}] if r.random() < 0.2 else []
    if domain == "json":
        return {"domain": domain, "messages": messages + json_turn(r, evaluation)}
    offered = offers(r)
    if domain == "nocall":
        messages += plain_turn(r, r.choice(ASIDE), evaluation)
    else:
        if not evaluation and r.random() < 0.08:
            messages += plain_turn(r, r.choice(ASIDE), evaluation)
        messages += tool_turn(r, offered, evaluation)
        if domain == "call" and evaluation:
            messages = messages[:-2]
    if not evaluation and r.random() < 0.15:
        messages += tool_turn(r, offered, evaluation)
    return {"domain": domain, "tools": [offer.tool() for offer in offered], "messages": messages}


def part(arrays: dict[str, np.ndarray], wanted: float, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens, mask and lengths of random chats in which the assistant has about this many tokens, at most all."""
    lengths = np.diff(arrays["offsets"])
    spoken = np.add.reduceat(arrays["mask"].astype(np.int64), arrays["offsets"][:-1])
    order = np.random.default_rng(seed).permutation(len(lengths))
    kept = np.zeros(len(lengths), bool)
    kept[order[: np.searchsorted(np.cumsum(spoken[order]), wanted, "right")]] = True
    tokens = np.repeat(kept, lengths)
    return arrays["ids"][tokens], arrays["mask"][tokens], lengths[kept]


def mixed(new: dict[str, np.ndarray], old: dict[str, np.ndarray], share: float, seed: int) -> dict[str, np.ndarray]:
    """As many chats of both as leave the new ones this share of the assistant's tokens."""
    total = min(new["mask"].sum() / share, old["mask"].sum() / (1 - share))
    ids, mask, lengths = zip(part(new, total * share, seed), part(old, total * (1 - share), seed))
    offsets = np.concatenate([[0], np.cumsum(np.concatenate(lengths))])
    return {"ids": np.concatenate(ids), "mask": np.concatenate(mask), "offsets": offsets}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path, default="data", help="folder of all files but the tokenizer")
    parser.add_argument("--earlier", default="train2.npz", help="the file of the earlier chats")
    parser.add_argument("--out", default="train3.npz")
    parser.add_argument("--tokenizer", default="tokenizer/tokenizer.json", help="the one of the earlier chats")
    parser.add_argument("--docs", type=int, default=60000)
    parser.add_argument("--share", type=float, default=0.5, help="of the assistant's tokens that new chats have")
    parser.add_argument("--eval-per-domain", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    r = random.Random(arguments.seed)
    documents = [document(r, r.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]) for _ in range(arguments.docs)]
    with open(arguments.data / "tools.jsonl", "w") as file:
        file.writelines(json.dumps(document) + "\n" for document in documents)
    r = random.Random(arguments.seed + 1000003)
    with open(arguments.data / "tools-eval.jsonl", "w") as file:
        for domain in EVALUATED:
            for _ in range(arguments.eval_per_domain):
                file.write(json.dumps(document(r, domain, evaluation=True)) + "\n")
    texts = [render(document["messages"], tools=document.get("tools")) for document in documents]
    new = encode(Tokenizer.from_file(arguments.tokenizer), texts, 1800)
    arrays = mixed(new, np.load(arguments.data / arguments.earlier), arguments.share, arguments.seed)
    np.savez(arguments.data / arguments.out, **arrays)
    chats, tokens = len(arrays["offsets"]) - 1, arrays["offsets"][-1]
    print(f"{chats} chats, {tokens} tokens, {arrays['mask'].sum()} of them the assistant's")


if __name__ == "__main__":
    main()
