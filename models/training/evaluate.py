#!/usr/bin/env python3
"""Measure the target on held-out prompts and print the README's table.

Teacher forcing: an answer matches exactly if every token of the reference is the argmax, so that greedy decoding gives
exactly the reference. Domains without a single right answer have no exact match.

  python evaluate.py --model ../lockstep-demo-7m --eval data/eval.jsonl data/tools-eval.jsonl
"""

import argparse
import json
import pathlib

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from chatml import END, content, render
from gen_data import CLOSED, STOCHASTIC
from loading import load_target
from model import Llama


@torch.no_grad()
def measure(model: Llama, tokenizer: Tokenizer, chats: list[dict]) -> dict:
    """Exact matches, token accuracy and loss over the last answers of some documents."""
    exact = correct = tokens = 0
    loss = 0.0
    for chat in chats:
        *before, last = chat["messages"]
        prompt = tokenizer.encode(render(before, True, chat.get("tools"))).ids
        answer = [*tokenizer.encode(content(last)).ids, END]
        logits = model.head(model(torch.tensor([prompt + answer]))[0, len(prompt) - 1 : -1])
        wanted = torch.tensor(answer)
        right = logits.argmax(-1) == wanted
        exact += bool(right.all())
        correct += int(right.sum())
        tokens += len(answer)
        loss += F.cross_entropy(logits, wanted, reduction="sum").item()
    return {"exact": exact / len(chats), "accuracy": correct / tokens, "loss": loss / tokens}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, default=pathlib.Path(__file__).parents[1] / "lockstep-demo-7m")
    parser.add_argument("--eval", type=pathlib.Path, nargs="+", default=[pathlib.Path("data/eval.jsonl")])
    parser.add_argument("--prompts", type=int, default=64, help="per domain")
    arguments = parser.parse_args()
    model, tokenizer = load_target(arguments.model), Tokenizer.from_file(str(arguments.model / "tokenizer.json"))
    domains: dict[str, list] = {}
    for path in arguments.eval:
        for line in path.read_text().splitlines():
            document = json.loads(line)
            domains.setdefault(document["domain"], []).append(document)
    print("| domain | exact match | token accuracy | loss (nats/token) | prompts |\n|---|---|---|---|---|")
    for domain, chats in domains.items():
        m = measure(model, tokenizer, chats[: arguments.prompts])
        exact = "-" if domain in STOCHASTIC else f"{m['exact']:.2f}"
        prompts = "closed (also in training)" if domain in CLOSED else "held out"
        print(f"| {domain} | {exact} | {m['accuracy']:.3f} | {m['loss']:.3f} | {prompts} |", flush=True)


if __name__ == "__main__":
    main()
