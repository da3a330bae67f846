#!/usr/bin/env python3
"""Check that the engines compute the same before their speed is compared: log-probabilities of a model's three forms.

  python agree.py --model models/moe-1b --llama-bin llama.cpp/build/bin

Lockstep's server and llama.cpp's each continue the same random prompts greedily and say how likely the five likeliest tokens
were at each place. transformers then goes over what each wrote, in bf16, and says how likely it finds the same tokens. A
wrong conversion gives differences of whole units; rounding to bf16 gives some hundredths, or some tenths where it sends a
token to another expert.
"""

import argparse
import json
import pathlib
import random
import sys
import urllib.request
from collections.abc import Callable
from statistics import median

import servers
import torch
import torch_worker

TOP = 5
# A greater median of the differences of a prompt is no rounding.
MOST = 0.25

# Token ids of an answer, and for each the likeliest tokens with their log-probabilities.
Answer = tuple[list[int], list[dict[int, float]]]


def post(port: int, path: str, body: dict) -> dict:
    """Send a request and read its answer."""
    data = json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        return json.load(answer)


def ask_lockstep(port: int, prompt: list[int], length: int) -> Answer:
    """Lockstep's native route."""
    sampling = {"temperature": 0, "max_new_tokens": length, "ignore_eos": True}
    wanted = {"return_logprob": True, "top_logprobs_num": TOP}
    answer = post(port, "/generate", {"input_ids": prompt, "sampling_params": sampling} | wanted)
    tops = answer["meta_info"]["output_top_logprobs"]
    return answer["output_ids"], [{entry[1]: entry[0] for entry in top} for top in tops]


def ask_llamacpp(port: int, prompt: list[int], length: int) -> Answer:
    """llama.cpp's route for completions."""
    body = {"prompt": prompt, "n_predict": length, "temperature": 0, "ignore_eos": True, "n_probs": TOP}
    answer = post(port, "/completion", body | {"return_tokens": True, "cache_prompt": False})
    places = answer["completion_probabilities"]
    return answer["tokens"], [{entry["id"]: entry["logprob"] for entry in place["top_logprobs"]} for place in places]


ASK: dict[str, Callable[[int, list[int], int], Answer]] = {"lockstep": ask_lockstep, "llamacpp": ask_llamacpp}


def differences(model, prompt: list[int], answer: Answer) -> list[float]:
    """How far transformers' log-probabilities of the named tokens are from an engine's."""
    tokens, tops = answer
    ids = torch.tensor([prompt + tokens[:-1]])
    with torch.inference_mode():
        logits = model(input_ids=ids, logits_to_keep=len(tokens)).logits[0].float()
    likely = logits.log_softmax(-1)
    return [abs(likely[place, token].item() - said) for place, top in enumerate(tops) for token, said in top.items()]


def beside(ours: Answer, theirs: Answer) -> list[float]:
    """How far two engines' log-probabilities are apart, as long as both have written the same tokens."""
    found = []
    for place in range(len(ours[0])):
        if ours[0][:place] != theirs[0][:place]:
            break
        both = ours[1][place].keys() & theirs[1][place].keys()
        found += [abs(ours[1][place][token] - theirs[1][place][token]) for token in both]
    return found


def main() -> None:
    """Ask both servers, then judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", type=pathlib.Path, required=True, help="folder of one shape made by models.py")
    add("--lockstep", type=pathlib.Path, default=pathlib.Path("target/release/lockstep"), help="the release binary")
    add("--llama-bin", type=pathlib.Path, required=True, help="folder of llama-server")
    add("--type", default="bf16", help="type of the GGUF file (default: bf16)")
    add("--prompt-len", type=int, default=200, help="tokens of a prompt (default: 200)")
    add("--output-len", type=int, default=8, help="tokens of an answer (default: 8)")
    add("--prompts", type=int, default=3, help="prompts (default: 3)")
    a = parser.parse_args()
    vocabulary = json.loads((a.model / "hf" / "config.json").read_text())["vocab_size"]
    draw = [random.Random(seed) for seed in range(a.prompts)]
    prompts = [[one.randrange(3, vocabulary) for _ in range(a.prompt_len)] for one in draw]
    programs = servers.Programs(a.lockstep, a.llama_bin, None, a.model)
    answers: dict[str, list[Answer]] = {}
    for name, ask in ASK.items():
        port = servers.free_port()
        kind = "bf16" if name == "lockstep" else a.type
        with servers.running(servers.SERVERS[name](programs, kind, 1, port), port):
            answers[name] = [ask(port, prompt, a.output_len) for prompt in prompts]
    for seed, (ours, theirs) in enumerate(zip(*answers.values(), strict=True)):
        apart = beside(ours, theirs)
        most = f"median {median(apart):.4f}, most {max(apart):.4f}" if apart else "no token in common"
        print(f"prompt {seed}, lockstep beside llamacpp: {most}, over {len(apart)} log-probabilities", flush=True)
    model = torch_worker.load(str(a.model / "hf"))
    worst = 0.0
    for seed, prompt in enumerate(prompts):
        for name, given in answers.items():
            tokens, tops = given[seed]
            if len(tokens) != a.output_len or any(len(top) != TOP for top in tops):
                raise SystemExit(f"{name} gave {len(tokens)} tokens, and not the {TOP} likeliest of each")
            apart = differences(model, prompt, given[seed])
            worst = max(worst, median(apart))
            print(f"prompt {seed}, {name:8}: median {median(apart):.4f}, most {max(apart):.4f}; tokens {tokens}", flush=True)
    if worst > MOST:
        sys.exit(f"a median of {worst:.3f} is above {MOST}: the engines don't compute the same model")


if __name__ == "__main__":
    main()
