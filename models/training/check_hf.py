#!/usr/bin/env python3
"""Check that the target loads in transformers and agrees with model.py, and that its chat template is chatml.render, with
tools and without.

python check_hf.py
"""

import argparse
import pathlib
import random

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from chatml import render
from loading import load_target
from synthetic.tools import exchange, offers

MESSAGES = [
    {"role": "system", "content": "You are a helpful assistant."},
    {"role": "user", "content": "Count from 7 to 25."},
]


def check_template(tokenizer) -> None:
    """Compare the template with chatml.render on a chat without tools, and on chats with some."""
    chats = [(MESSAGES, None)]
    r = random.Random(0)
    for _ in range(100):
        offered = offers(r)
        answered = exchange(offered[0], offered[0].kind.case(r))
        tools = [offer.tool() for offer in offered]
        chats += [(answered[:1], tools), ([*MESSAGES[:1], *answered[:3]], tools)]
    for messages, tools in chats:
        text = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=True)
        assert text == render(messages, True, tools), text


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, default=pathlib.Path(__file__).parents[1] / "lockstep-demo-7m")
    folder = parser.parse_args().model
    tokenizer = AutoTokenizer.from_pretrained(folder)
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ours = load_target(folder)
    check_template(tokenizer)
    text = render(MESSAGES, True)
    ids = torch.tensor([tokenizer(text).input_ids])
    difference = (theirs(ids).logits - ours.head(ours(ids))).abs().max().item()
    assert difference < 1e-3, difference
    output = theirs.generate(ids, max_new_tokens=64, do_sample=False)
    answer = tokenizer.decode(output[0, ids.shape[1] :])
    print(f"{type(theirs).__name__}: largest logit difference {difference:.1e}, answer {answer!r}")


if __name__ == "__main__":
    main()
