"""Targets of either architecture."""

import json
import pathlib

from hybrid import Hybrid, load_hybrid
from model import Llama, load


def load_target(folder: pathlib.Path) -> Llama | Hybrid:
    """A checkpoint's target in float32, ready to run, by the architecture that its config names."""
    config = json.loads((pathlib.Path(folder) / "config.json").read_text())
    return load_hybrid(folder) if config["model_type"] == "qwen3_5_text" else load(folder)
