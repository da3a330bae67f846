#!/usr/bin/env python3
"""Write the synthetic chat data of the demo models; no third-party text goes into it.

Every domain of synthetic/ is a function from a seeded random generator to one question and its answer. A document is one
turn, or several turns of mixed domains: {"domain", "messages"}. The same seed gives the same bytes.

Held out: in the open domains, a prompt whose crc32 is a multiple of 40 never enters training, and evaluation uses only
those. The closed domains have so few prompts that evaluation meets prompts of the training data.

  python gen_data.py --out data --train-docs 280000 --eval-per-domain 64 --seed 1
"""

import argparse
import json
import pathlib
import random
import zlib

from synthetic.arithmetic import arithmetic, tables, units
from synthetic.context import long_context, statement
from synthetic.editing import copy, lists
from synthetic.exercises import counting, reversing, sorting, spelling
from synthetic.noise import random_text
from synthetic.programs import code
from synthetic.prose import poem, product, story, weather
from synthetic.records import structured
from synthetic.talk import small_talk
from synthetic.velmora import facts
from synthetic.words import Turn

DOMAINS = {
    "counting": counting,
    "sorting": sorting,
    "spelling": spelling,
    "reversing": reversing,
    "arithmetic": arithmetic,
    "tables": tables,
    "units": units,
    "structured": structured,
    "code": code,
    "copy": copy,
    "lists": lists,
    "story": story,
    "product": product,
    "weather": weather,
    "poem": poem,
    "facts": facts,
    "smalltalk": small_talk,
    "random": random_text,
    "longctx": long_context,
}
WEIGHTS = {
    "counting": 7,
    "sorting": 10,
    "spelling": 7,
    "reversing": 5,
    "arithmetic": 11,
    "tables": 3,
    "units": 4,
    "structured": 6,
    "code": 6,
    "copy": 8,
    "lists": 3,
    "story": 4,
    "product": 4,
    "weather": 4,
    "poem": 3,
    "facts": 5,
    "smalltalk": 2,
    "random": 4,
    "longctx": 3,
    "multiturn": 5,
}
CLOSED = {"tables", "units", "facts", "smalltalk", "lists", "spelling"}
STOCHASTIC = {"story", "product", "weather", "poem", "random"}  # no single right answer
BETWEEN = ["counting", "spelling", "tables", "facts", "smalltalk", "units", "lists", "reversing"]
SYSTEM = [
    "You are a helpful assistant.",
    "You are the Lockstep demo model.",
    "You are a helpful assistant. Answer in plain text.",
    "Answer the question.",
    "You are a careful assistant who gives short answers.",
    "Be brief and correct.",
]


def held_out(user: str) -> bool:
    return zlib.crc32(user.encode()) % 40 == 0


def casual(r: random.Random, user: str) -> str:
    """Training prompts now and then lack the capital letter or the final stop, as people type."""
    if r.random() < 0.08:
        user = user[0].lower() + user[1:]
    if r.random() < 0.08 and user[-1] in ".?":
        user = user[:-1]
    return user


def turn(r: random.Random, domain: str, evaluation: bool) -> Turn:
    """A turn of the right side of the held-out split."""
    while True:
        user, answer = DOMAINS[domain](r)
        if domain in CLOSED or held_out(user) == evaluation:
            return user, answer


def several_turns(r: random.Random, evaluation: bool) -> list[Turn]:
    """Mixed turns, or a statement, other talk, and the question for what was stated."""
    if r.random() < 0.4:
        stated, asked = statement(r)
        turns = [stated, *(DOMAINS[r.choice(BETWEEN)](r) for _ in range(r.randint(0, 3))), asked]
    else:
        domains = [domain for domain in DOMAINS if domain not in ("longctx", "random")]
        turns = [turn(r, r.choice(domains), evaluation) for _ in range(r.randint(2, 4))]
    if evaluation and turns[-1][0] not in ("What is my name?", "Where do I live?"):
        last = turn(r, r.choice(["copy", "counting", "facts", "structured", "reversing"]), evaluation)
        turns = [*turns[:-1], last]
    return turns


def document(r: random.Random, domain: str, evaluation: bool = False) -> dict:
    """One chat of a domain; "multiturn" is the domain of longer chats."""
    if domain == "multiturn":
        turns = several_turns(r, evaluation)
    else:
        turns = [turn(r, domain, evaluation)]
        if not evaluation and domain != "longctx" and r.random() < 0.12:
            turns.append(turn(r, r.choice([d for d in DOMAINS if d != "longctx"]), evaluation))
    messages = [{"role": "system", "content": r.choice(SYSTEM)}] if r.random() < 0.25 else []
    if not evaluation:
        turns = [(casual(r, user), answer) for user, answer in turns]
    for user, answer in turns:
        messages += [{"role": "user", "content": user}, {"role": "assistant", "content": answer}]
    return {"domain": domain, "messages": messages}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default="data", help="folder for train.jsonl and eval.jsonl")
    parser.add_argument("--train-docs", type=int, default=280000)
    parser.add_argument("--eval-per-domain", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    domains, weights = list(WEIGHTS), list(WEIGHTS.values())
    r = random.Random(arguments.seed)
    with open(arguments.out / "train.jsonl", "w") as file:
        for _ in range(arguments.train_docs):
            file.write(json.dumps(document(r, r.choices(domains, weights)[0])) + "\n")
    r = random.Random(arguments.seed + 1000003)
    with open(arguments.out / "eval.jsonl", "w") as file:
        for domain in domains:
            for _ in range(arguments.eval_per_domain):
                file.write(json.dumps(document(r, domain, evaluation=True)) + "\n")


if __name__ == "__main__":
    main()
