#!/usr/bin/env python3
"""Make the models of the comparison: Hugging Face folders, and GGUF files for llama.cpp.

Speed depends on a model's shape, not on what it knows, so the weights are random (0.5b, moe-1b, gpt-oss, gemma3-1b,
qwen3.5-0.8b, qwen3.5-moe) or a small model widened (1b).

  python models.py --out models --llama-cpp llama.cpp
  python models.py --out models --llama-cpp llama.cpp --shapes 1b --types q8_0

Each shape becomes OUT/SHAPE/hf and OUT/SHAPE/TYPE.gguf; what is there already is kept. Needs torch, transformers,
sentencepiece, about 7 GB of disk for 1b and 1b-128k each, 3 GB for 0.5b, 5 GB for 1b-family, 12 GB for moe-1b, 7 GB for
gpt-oss, 4 GB for gemma3-1b, 3 GB for qwen3.5-0.8b and 9 GB for qwen3.5-moe.

1b-family is for speculation: the demo model and all that drafts for it, widened together, with the model's own vocabulary.
Its drafts are OUT/1b-family/hf-draft, hf-eagle3 and hf-eagle, and draft-bf16.gguf.

1b-128k is for answers held to a grammar, whose cost grows with the vocabulary: 1b with as many tokens as Llama 3.2 has. Its
tokenizer learns them from the sources of torch and transformers, in one to three minutes.

moe-1b has the widths of Qwen3-30B-A3B, with 16 of its 48 layers and 32 of its 128 experts: 1 of 2.9 billion parameters are
active. gpt-oss has the widths and experts of gpt-oss-20b in 6 of its 24 layers, its experts in MXFP4, which GGUF keeps bit
for bit. qwen3.5-moe has the widths of Qwen3.6-35B-A3B, with 8 of its 40 layers and 64 of its 256 experts. These three have a
vocabulary of 32,000. gemma3-1b and qwen3.5-0.8b have those models' shapes, the latter with its draft layer. These five have
one GGUF file each.
"""

import argparse
import json
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Callable

import torch
import transformers
from tokenizers import Tokenizer, trainers
from transformers import Qwen2Config, Qwen2ForCausalLM

import drawn
import shapes

HERE = pathlib.Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
DEMO = REPOSITORY / "models" / "lockstep-demo-7m"
DRAFTS = {"eagle3": "lockstep-demo-7m-eagle3", "eagle": "lockstep-demo-7m-eagle", "draft": "lockstep-demo-1m-draft"}
TYPES = ["q8_0", "q4_0", "q4_k_m", "q6_k"]
# Longest prompt and output of any cell; the widened demo model would say 2,048.
CONTEXT = 4096
# Tokens of Llama 3.2.
LARGE_VOCABULARY = 128_256


def make_1b(folder: pathlib.Path, vocabulary: int = 32_000) -> None:
    """Llama-3.2-1B's shape with a vocabulary of 32,000: the demo model, widened."""
    shape = f"--hidden 2048 --layers 16 --intermediate 8192 --heads 32 --kv-heads 8 --vocab {vocabulary}"
    script = REPOSITORY / "models" / "training" / "inflate.py"
    subprocess.run([sys.executable, script, *shape.split(), "--out", folder], check=True)
    path = folder / "config.json"
    config = json.loads(path.read_text()) | {"max_position_embeddings": CONTEXT}
    path.write_text(json.dumps(config, indent=2) + "\n")


def make_1b_128k(folder: pathlib.Path) -> None:
    """1b with Llama 3.2's number of tokens, and a tokenizer that has texts for all of them."""
    make_1b(folder, LARGE_VOCABULARY)
    tokenizer = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
    special = [token.content for _, token in sorted(tokenizer.get_added_tokens_decoder().items())]
    trainer = trainers.BpeTrainer(vocab_size=LARGE_VOCABULARY, special_tokens=special)
    roots = [pathlib.Path(module.__file__).parent for module in (torch, transformers)]
    tokenizer.train(sorted(str(path) for root in roots for path in root.rglob("*.py")), trainer)
    if tokenizer.get_vocab_size() != LARGE_VOCABULARY:
        raise SystemExit(f"the sources hold but {tokenizer.get_vocab_size()} tokens of {LARGE_VOCABULARY}")
    tokenizer.save(str(folder / "tokenizer.json"))


def make_05b(folder: pathlib.Path) -> None:
    """Qwen2.5-0.5B's shape with random weights; the demo model's tokenizer knows fewer ids than the config."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=151_936,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=2,
        pad_token_id=0,
        dtype="bfloat16",
    )
    Qwen2ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(DEMO / name, folder / name)


def make_family(folder: pathlib.Path) -> None:
    """1b's shape with the demo model's vocabulary; its drafts, widened too, go beside it as OUT-eagle3 and so on."""
    shape = "--hidden 2048 --layers 16 --intermediate 8192 --heads 32 --kv-heads 8 --draft-shape 512,4,2048,8,4"
    script = REPOSITORY / "models" / "training" / "inflate.py"
    drafts = [word for name, small in DRAFTS.items() for word in (f"--{name}", REPOSITORY / "models" / small)]
    subprocess.run([sys.executable, script, *shape.split(), *drafts, "--out", folder], check=True)
    for name in DRAFTS:
        made, final = (folder.with_name(f"{of}-{name}") for of in (folder.name, "hf"))
        if final.exists():
            shutil.rmtree(final)
        made.rename(final)


def make_drawn(config: dict) -> Callable[[pathlib.Path], None]:
    """A maker of random weights for a config."""
    return lambda folder: drawn.save(config, folder, CONTEXT, DEMO)


MAKERS = {"1b": make_1b, "1b-128k": make_1b_128k, "0.5b": make_05b, "1b-family": make_family}
MAKERS |= {shape: make_drawn(config) for shape, config in shapes.ALL.items()}


def convert(folder: pathlib.Path, llama_cpp: pathlib.Path, out: pathlib.Path) -> None:
    """Write the folder's weights as GGUF in bf16."""
    command = [sys.executable, HERE / "convert_gguf.py", llama_cpp, folder, "--outtype", "bf16", "--outfile", out]
    subprocess.run(command, check=True)


def quantize(llama_cpp: pathlib.Path, source: pathlib.Path, kind: str, out: pathlib.Path) -> None:
    """Quantise a GGUF file; llama.cpp keeps a few tensors in more bits where its format asks for it."""
    program = llama_cpp / "build" / "bin" / "llama-quantize"
    subprocess.run([program, source, out, kind.upper(), "2"], check=True)


def once(path: pathlib.Path, make: Callable[[pathlib.Path], object]) -> None:
    """Make a file or folder under another name first, so that what has the right name is whole."""
    if path.exists():
        print(f"{path} is there", flush=True)
        return
    partial = path.with_name(f"partial-{path.name}")
    if partial.is_dir():
        shutil.rmtree(partial)
    make(partial)
    partial.rename(path)
    print(f"{path} made", flush=True)


def main() -> None:
    """Make what the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder for all models")
    parser.add_argument("--llama-cpp", type=pathlib.Path, help="llama.cpp's source folder, built; without it no GGUF")
    parser.add_argument("--shapes", nargs="+", choices=MAKERS, default=["1b", "0.5b"])
    parser.add_argument(
        "--types", nargs="*", choices=TYPES, default=TYPES, help="GGUF types besides bf16 (default: all)"
    )
    a = parser.parse_args()
    for shape in a.shapes:
        folder = a.out / shape
        folder.mkdir(parents=True, exist_ok=True)
        once(folder / "hf", MAKERS[shape])
        if a.llama_cpp is None:
            continue
        plain = folder / ("mxfp4.gguf" if shape == "gpt-oss" else "bf16.gguf")
        once(plain, lambda out, folder=folder: convert(folder / "hf", a.llama_cpp, out))
        if shape == "1b-family":
            once(folder / "draft-bf16.gguf", lambda out, folder=folder: convert(folder / "hf-draft", a.llama_cpp, out))
            continue
        for kind in a.types if shape not in shapes.ALL else []:
            once(folder / f"{kind}.gguf", lambda out, plain=plain, kind=kind: quantize(a.llama_cpp, plain, kind, out))


if __name__ == "__main__":
    main()
