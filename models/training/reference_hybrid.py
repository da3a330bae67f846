#!/usr/bin/env python3
"""Greedy goldens of the hybrid in float32, computed by hybrid.py without a cache, and what its draft layer's tokens are worth
along them, by domain.

The prompts are those of goldens.json. --out keeps the first of some domains, for the tests.

  python reference_hybrid.py --out ../../tests/fixtures/hybrid_goldens.json
"""

import argparse
import functools
import json
import pathlib

import torch
from tokenizers import Tokenizer

from chatml import END, render
from hybrid import load_hybrid
from model import greedy
from mtp import load_mtp
from speculate import HeadDrafter, accepted

HERE = pathlib.Path(__file__).resolve().parent
GOLDENS = HERE.parents[1] / "tests" / "fixtures" / "goldens.json"
LIMIT, STEPS = 64, 7
KEPT = ["facts", "code", "arithmetic", "longctx"]
"""Domains whose first prompt has no near ties."""


@torch.no_grad()
def golden(target, mtp, tokenizer: Tokenizer, messages: list[dict]) -> dict:
    """The greedy answer to a chat, how firm it is, and what is accepted along it."""
    prompt = tokenizer.encode(render(messages, True)).ids
    output, first, gap = greedy(target, prompt, LIMIT, END)
    top = first.log_softmax(-1).topk(5)
    # The text goes on behind its end, as the last round's drafts do.
    text, begin = prompt + output, len(prompt)
    text = text + greedy(target, text, STEPS + 1, stop=-1)[0]
    drafter = HeadDrafter(mtp, target, text)
    longest = functools.cache(lambda n: drafter.chain(n, STEPS))
    rounds = {str(k): accepted(lambda n: [longest(n)[:k]], text, begin, begin + len(output)) for k in (1, 3, STEPS)}
    return {
        "messages": messages,
        "prompt_ids": prompt,
        "output_ids": output,
        "min_top2_logit_gap": round(gap, 5),
        "first_top5": [[i, round(v, 5)] for i, v in zip(top.indices.tolist(), top.values.tolist())],
        "accepted": rounds,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, default=HERE.parent / "lockstep-demo-8m-hybrid")
    parser.add_argument("--per-domain", type=int, default=2)
    parser.add_argument("--domains", nargs="*", help="only these")
    parser.add_argument("--out", type=pathlib.Path, help="goldens to write, of the first prompt of some domains")
    arguments = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(arguments.model / "tokenizer.json"))
    target, mtp = load_hybrid(arguments.model), load_mtp(arguments.model)
    domains: dict[str, list[dict]] = {}
    for prompt in json.loads(GOLDENS.read_text())["prompts"]:
        if arguments.domains and prompt["domain"] not in arguments.domains:
            continue
        taken = domains.setdefault(prompt["domain"], [])
        if len(taken) < arguments.per_domain:
            taken.append(golden(target, mtp, tokenizer, prompt["messages"]))
    print(f"| domain | accepted tokens of {STEPS} | of 3 |\n|---|---|---|")
    mean = lambda goldens, steps: [rounds for golden in goldens for rounds in golden["accepted"][steps]]
    every = [golden for goldens in domains.values() for golden in goldens]
    for domain, goldens in [*domains.items(), ("**all**", every)]:
        means = (sum(rounds) / max(len(rounds), 1) for rounds in (mean(goldens, str(STEPS)), mean(goldens, "3")))
        print(f"| {domain} |", " | ".join(f"{value:.2f}" for value in means), "|", flush=True)
    if arguments.out:
        kept = [{"domain": domain, **domains[domain][0]} for domain in KEPT]
        notes = {"dtype": "float32 (bf16 weights upcast)", "stop": f"at <|im_end|> (id {END}, included) or {LIMIT} tokens"}
        arguments.out.write_text(json.dumps(notes | {"prompts": kept}) + "\n")


if __name__ == "__main__":
    main()
