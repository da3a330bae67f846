#!/usr/bin/env python3
"""Time transformers on torch CPU: one phase, one sample a cell, JSON lines on stdout.

  python torch_worker.py MODEL prefill 128,512
  python torch_worker.py MODEL decode 1,8 --context 192 --output-len 64

bf16 weights, sdpa attention (eager where a model has sinks), a DynamicCache, logits of the last position only, greedy
tokens. Weights in MXFP4 become bf16.
"""

import argparse
import copy
import json
import platform
import time

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, Mxfp4Config

# Models whose attention has sinks, which sdpa has not.
SINKS = ["gpt_oss"]


def load(folder: str):
    """A model in bf16."""
    config = AutoConfig.from_pretrained(folder)
    options: dict = {"attn_implementation": "eager" if config.model_type in SINKS else "sdpa"}
    if getattr(config, "quantization_config", {}).get("quant_method") == "mxfp4":
        options["quantization_config"] = Mxfp4Config(dequantize=True)
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, **options).eval()


def prefill(model, prompt: torch.Tensor) -> DynamicCache:
    """Compute a prompt; the token after it is taken, as an engine would."""
    cache = DynamicCache(config=model.config)
    model(input_ids=prompt, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1].argmax(-1)
    return cache


def timed_prefill(model, length: int) -> dict:
    """Seconds from prompt to token, after a run of the same size."""
    prompt = random_ids(model, length)
    prefill(model, prompt)
    start = time.perf_counter()
    cache = prefill(model, prompt)
    seconds = time.perf_counter() - start
    if cache.get_seq_length() != length:
        raise SystemExit(f"the cache holds {cache.get_seq_length()} tokens, not {length}")
    return {"tokens": length, "seconds": seconds}


def timed_decode(model, batch: int, context: int, output_len: int) -> dict:
    """Seconds for `output_len` steps of `batch` sequences over copies of one prompt, after a few steps of the same."""
    # A cache with recurrent states can't be copied to other sequences, so each computes the prompt.
    prompt = prefill(model, random_ids(model, context).expand(batch, -1))
    # A copy, since a cache with windows can't be cut back.
    steps(model, copy.deepcopy(prompt), batch, 4)
    start = time.perf_counter()
    steps(model, prompt, batch, output_len)
    seconds = time.perf_counter() - start
    if prompt.get_seq_length() != context + output_len:
        raise SystemExit(f"the cache holds {prompt.get_seq_length()} tokens, not {context + output_len}")
    return {"tokens": batch * output_len, "seconds": seconds}


def steps(model, cache: DynamicCache, batch: int, count: int) -> None:
    """Greedy steps from arbitrary tokens, which differ, so that sequences go through experts of their own."""
    tokens = torch.arange(7, 7 + batch)[:, None]
    for _ in range(count):
        logits = model(input_ids=tokens, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
        tokens = logits[:, -1].argmax(-1, keepdim=True)


def random_ids(model, length: int) -> torch.Tensor:
    """A prompt of random ids, the same in each run."""
    generator = torch.Generator().manual_seed(length)
    return torch.randint(3, model.config.vocab_size, (1, length), generator=generator)


def main() -> None:
    """Print what runs, then a line for each cell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("phase", choices=["prefill", "decode"])
    parser.add_argument("sizes", type=lambda text: [int(size) for size in text.split(",")])
    parser.add_argument("--context", type=int, default=192)
    parser.add_argument("--output-len", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    a = parser.parse_args()
    torch.set_num_threads(a.threads)
    model = load(a.model)
    about = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "threads": torch.get_num_threads(),
        "dtype": str(next(model.parameters()).dtype),
        "onednn": torch.backends.mkldnn.is_available(),
        "onednn_bf16": torch.ops.mkldnn._is_mkldnn_bf16_supported(),
        "attention": model.config._attn_implementation,
    }
    print(json.dumps({"about": about}), flush=True)
    with torch.inference_mode():
        for size in a.sizes:
            if a.phase == "prefill":
                sample = timed_prefill(model, size)
            else:
                sample = timed_decode(model, size, a.context, a.output_len)
            print(json.dumps({"size": size} | sample), flush=True)


if __name__ == "__main__":
    main()
