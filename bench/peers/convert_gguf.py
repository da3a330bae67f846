#!/usr/bin/env python3
"""llama.cpp's convert_hf_to_gguf.py for models whose tokenizer it does not know.

  python convert_gguf.py LLAMA_CPP MODEL --outtype bf16 --outfile MODEL.gguf

The converter recognises a tokenizer's pre-tokenizer by a hash over a sample text, and refuses a tokenizer trained by
ourselves. Here it takes Llama 3's for any: the comparison sends token ids, so no text is ever split by it.
"""

import importlib
import pathlib
import runpy
import sys

PRE_TOKENIZER = "llama-bpe"


def main() -> None:
    """Run the converter, its recognition replaced."""
    llama_cpp, *arguments = sys.argv[1:]
    folder = pathlib.Path(llama_cpp).resolve()
    sys.path[:0] = [str(folder), str(folder / "gguf-py")]
    conversion = importlib.import_module("conversion")
    conversion.TextModel.get_vocab_base_pre = lambda self, tokenizer: PRE_TOKENIZER
    script = folder / "convert_hf_to_gguf.py"
    sys.argv = [str(script), *arguments]
    runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    main()
