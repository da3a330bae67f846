#!/usr/bin/env python3
"""Greedy goldens of the target in float32, computed by model.py without a KV cache, and what the draft models' tokens
are worth along them, by speculate.py.

--check compares an existing goldens.json: outputs, first logprobs, smallest logit gaps, accepted lengths. --out writes the
same fields anew for the first two evaluation prompts of every domain.

  python reference.py --check ../../tests/fixtures/goldens.json
  python reference.py --eval data/eval.jsonl --out goldens.json
"""

import argparse
import functools
import json
import pathlib

import torch
from tokenizers import Tokenizer

from chatml import END, render
from dflash import load_dflash
from heads import load_head
from model import greedy, load
from speculate import TREE, BlockDrafter, HeadDrafter, ModelDrafter, accepted

HERE = pathlib.Path(__file__).resolve().parent
LIMIT = 64
TOLERANCE = 1e-3
STEPS = range(1, 8)


class Family:
    """The target and what drafts for it."""

    def __init__(self, folder: pathlib.Path):
        self.target = load(folder / "lockstep-demo-7m")
        self.eagle3 = load_head(folder / "lockstep-demo-7m-eagle3")
        self.eagle = load_head(folder / "lockstep-demo-7m-eagle")
        self.dflash = load_dflash(folder / "lockstep-demo-7m-dflash")
        self.draft = load(folder / "lockstep-demo-1m-draft")

    @torch.no_grad()
    def acceptance(self, prompt: list[int], output: list[int]) -> dict:
        """The goldens' fields about drafts. The text goes on behind its end, as the last round's drafts do."""
        text, begin, end = list(prompt) + output, len(prompt), len(prompt) + len(output)
        text += greedy(self.target, text, STEPS[-1] + 1, stop=-1)[0]
        drafters = {
            "eagle3": HeadDrafter(self.eagle3, self.target, text),
            "eagle": HeadDrafter(self.eagle, self.target, text),
            "dflash": BlockDrafter(self.dflash, self.target, text),
            "draft": ModelDrafter(self.draft, text),
        }
        rounds, first = {}, {}
        for name, drafter in drafters.items():
            longest = functools.cache(lambda n, drafter=drafter: drafter.chain(n, STEPS[-1]))
            rounds[name] = {str(k): accepted(lambda n: [longest(n)[:k]], text, begin, end) for k in STEPS}
            top = drafter.first_logits(begin + 1).topk(5)
            tokens, values = top.indices.tolist(), top.values.tolist()
            first[f"{name}_first_step_top5"] = [
                [int(drafter.known[token]), token, round(value, 5)] for token, value in zip(tokens, values)
            ]
        tree = drafters["eagle3"].tree
        rounds["eagle3_tree_topk4_steps3_total16"] = accepted(lambda n: tree(n, **TREE), text, begin, end)
        return {"accepted": rounds, **first}


def golden(family: Family, tokenizer: Tokenizer, domain: str, messages: list[dict]) -> dict:
    """The greedy answer to a chat, how firm it is, and what is accepted along it."""
    prompt = tokenizer.encode(render(messages, True)).ids
    output, first, gap = greedy(family.target, prompt, LIMIT, END)
    top = first.log_softmax(-1).topk(5)
    return {
        "domain": domain,
        "messages": messages,
        "prompt_ids": prompt,
        "output_ids": output,
        "output_text": tokenizer.decode([token for token in output if token != END]),
        "min_top2_logit_gap": round(gap, 5),
        "first_top5": [[i, round(v, 5)] for i, v in zip(top.indices.tolist(), top.values.tolist())],
        **family.acceptance(prompt, output),
    }


def differences(want: dict, got: dict) -> list[str]:
    """The fields in which two goldens differ, numbers beyond TOLERANCE."""
    fields = [key for key in ("prompt_ids", "output_ids", "output_text") if want[key] != got[key]]
    if abs(want["min_top2_logit_gap"] - got["min_top2_logit_gap"]) > TOLERANCE:
        fields.append("min_top2_logit_gap")
    if any(abs(a[1] - b[1]) > TOLERANCE for a, b in zip(want["first_top5"], got["first_top5"])):
        fields.append("first_top5")
    for name, rounds in want["accepted"].items():
        if rounds != got["accepted"][name]:
            fields.append(f"accepted {name}")
    for name in (key for key in want if key.endswith("_first_step_top5")):
        if any(a[:2] != b[:2] or abs(a[2] - b[2]) > TOLERANCE for a, b in zip(want[name], got[name])):
            fields.append(name)
    return fields


def check(family: Family, tokenizer: Tokenizer, path: pathlib.Path) -> None:
    prompts = json.loads(path.read_text())["prompts"]
    bad = 0
    for want in prompts:
        wrong = differences(want, golden(family, tokenizer, want["domain"], want["messages"]))
        bad += bool(wrong)
        if wrong:
            print(f"{want['domain']}: {want['messages'][-1]['content'][-60:]!r} differs in {', '.join(wrong)}")
    print(f"{len(prompts) - bad} of {len(prompts)} goldens reproduced")
    if bad:
        raise SystemExit(1)


def write(family: Family, tokenizer: Tokenizer, source: pathlib.Path, count: int, out: pathlib.Path) -> None:
    taken: dict[str, int] = {}
    prompts = []
    with open(source) as file:
        for line in file:
            document = json.loads(line)
            domain = document["domain"]
            taken[domain] = taken.get(domain, 0) + 1
            if taken[domain] <= count:
                prompts.append(golden(family, tokenizer, domain, document["messages"][:-1]))
    notes = {
        "dtype": "float32 (bf16 weights upcast)",
        "stop": f"at <|im_end|> (id {END}, included) or {LIMIT} tokens",
        "first_step_top5": "[target id, draft id, logit] of the first drafted token",
        "first_top5": "[id, logprob]",
    }
    out.write_text(json.dumps(notes | {"prompts": prompts}, indent=1))
    print(f"{len(prompts)} goldens")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--models", type=pathlib.Path, default=HERE.parent, help="the folder with the target and its drafts"
    )
    parser.add_argument("--check", type=pathlib.Path, help="goldens to reproduce")
    parser.add_argument("--eval", type=pathlib.Path, default="data/eval.jsonl")
    parser.add_argument("--per-domain", type=int, default=2)
    parser.add_argument("--out", type=pathlib.Path, help="goldens to write")
    arguments = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(arguments.models / "lockstep-demo-7m" / "tokenizer.json"))
    family = Family(arguments.models)
    if arguments.check:
        check(family, tokenizer, arguments.check)
    if arguments.out:
        write(family, tokenizer, arguments.eval, arguments.per_domain, arguments.out)


if __name__ == "__main__":
    main()
