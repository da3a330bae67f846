"""Prompts of an exact number of tokens, as ids and as text, for servers that take the one or the other."""

import json
import pathlib
import random

from tokenizers import Tokenizer


def make(model: pathlib.Path, count: int, length: int, seed: int) -> list[tuple[list[int], str]]:
    """Random words of one token each, behind a space each, so that the text has as many tokens as it has words.

    `model` holds tokenizer.json. Raises ValueError when the tokenizer has no such words.
    """
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    words = [word for word in map(tokenizer.decode, single_words(tokenizer)) if is_one_token(tokenizer, word)]
    if len(words) < 100:
        raise ValueError(f"{model}: only {len(words)} words are one token")
    generator = random.Random(seed)
    prompts = []
    for _ in range(count):
        text = "".join(generator.choice(words) for _ in range(length))
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        if len(ids) != length:
            raise ValueError(f"{model}: {length} words make {len(ids)} tokens")
        prompts.append((ids, text))
    return prompts


def single_words(tokenizer: Tokenizer) -> list[list[int]]:
    """Tokens of a space and letters, each as a list of one id."""
    ids = range(tokenizer.get_vocab_size())
    texts = ((number, tokenizer.decode([number])) for number in ids)
    return [[number] for number, text in texts if text[:1] == " " and text[1:].isascii() and text[1:].isalpha()]


def is_one_token(tokenizer: Tokenizer, word: str) -> bool:
    """Whether a word comes back from its text as one token."""
    return len(tokenizer.encode(word, add_special_tokens=False).ids) == 1


def write(path: pathlib.Path, prompts: list[tuple[list[int], str]], as_text: bool) -> None:
    """One JSON value a line, as `lockstep bench serve --prompts` reads them."""
    path.write_text("".join(json.dumps(text if as_text else ids) + "\n" for ids, text in prompts))
