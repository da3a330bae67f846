#!/usr/bin/env python3
"""Greedy goldens of the target in float32, computed by model.py without a KV cache.

--check compares an existing goldens.json (its outputs, first logprobs and smallest logit gaps). --out writes the same
fields anew for the first two evaluation prompts of every domain; the accepted lengths of the draft models, which the
repository's goldens.json also has, are left out.

  python reference.py --check ../../tests/fixtures/goldens.json
  python reference.py --eval data/eval.jsonl --out goldens.json
"""

import argparse
import json
import pathlib

from tokenizers import Tokenizer

from chatml import END, render
from model import Llama, greedy, load

HERE = pathlib.Path(__file__).resolve().parent
LIMIT = 64
TOLERANCE = 1e-3


def golden(model: Llama, tokenizer: Tokenizer, domain: str, messages: list[dict]) -> dict:
    """The greedy answer to a chat, and how firm it is."""
    prompt = tokenizer.encode(render(messages, True)).ids
    output, first, gap = greedy(model, prompt, LIMIT, END)
    top = first.log_softmax(-1).topk(5)
    return {
        "domain": domain,
        "messages": messages,
        "prompt_ids": prompt,
        "output_ids": output,
        "output_text": tokenizer.decode([token for token in output if token != END]),
        "min_top2_logit_gap": round(gap, 5),
        "first_top5": [[i, round(v, 5)] for i, v in zip(top.indices.tolist(), top.values.tolist())],
    }


def differences(want: dict, got: dict) -> list[str]:
    """The fields in which two goldens differ, numbers beyond TOLERANCE."""
    fields = [key for key in ("prompt_ids", "output_ids", "output_text") if want[key] != got[key]]
    if abs(want["min_top2_logit_gap"] - got["min_top2_logit_gap"]) > TOLERANCE:
        fields.append("min_top2_logit_gap")
    if any(abs(a[1] - b[1]) > TOLERANCE for a, b in zip(want["first_top5"], got["first_top5"])):
        fields.append("first_top5")
    return fields


def check(model: Llama, tokenizer: Tokenizer, path: pathlib.Path) -> None:
    prompts = json.loads(path.read_text())["prompts"]
    bad = 0
    for want in prompts:
        wrong = differences(want, golden(model, tokenizer, want["domain"], want["messages"]))
        bad += bool(wrong)
        if wrong:
            print(f"{want['domain']}: {want['messages'][-1]['content'][-60:]!r} differs in {', '.join(wrong)}")
    print(f"{len(prompts) - bad} of {len(prompts)} goldens reproduced")
    if bad:
        raise SystemExit(1)


def write(model: Llama, tokenizer: Tokenizer, source: pathlib.Path, count: int, out: pathlib.Path) -> None:
    taken: dict[str, int] = {}
    prompts = []
    with open(source) as file:
        for line in file:
            document = json.loads(line)
            domain = document["domain"]
            taken[domain] = taken.get(domain, 0) + 1
            if taken[domain] <= count:
                prompts.append(golden(model, tokenizer, domain, document["messages"][:-1]))
    notes = {
        "dtype": "float32 (bf16 weights upcast)",
        "stop": f"at <|im_end|> (id {END}, included) or {LIMIT} tokens",
        "first_top5": "[id, logprob]",
    }
    out.write_text(json.dumps(notes | {"prompts": prompts}, indent=1))
    print(f"{len(prompts)} goldens")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, default=HERE.parent / "lockstep-demo-7m")
    parser.add_argument("--check", type=pathlib.Path, help="goldens to reproduce")
    parser.add_argument("--eval", type=pathlib.Path, default="data/eval.jsonl")
    parser.add_argument("--per-domain", type=int, default=2)
    parser.add_argument("--out", type=pathlib.Path, help="goldens to write")
    arguments = parser.parse_args()
    model, tokenizer = load(arguments.model), Tokenizer.from_file(str(arguments.model / "tokenizer.json"))
    if arguments.check:
        check(model, tokenizer, arguments.check)
    if arguments.out:
        write(model, tokenizer, arguments.eval, arguments.per_domain, arguments.out)


if __name__ == "__main__":
    main()
