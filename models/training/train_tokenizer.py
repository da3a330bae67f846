#!/usr/bin/env python3
"""Train the tokenizer, byte-level BPE with digits split one by one, and encode the training data with it.

Writes tokenizer.json and tokenizer_config.json to --out, and train.npz beside train.jsonl: `ids` of all documents in a
row, `mask` (1 on what the assistant writes, which alone carries loss), `offsets` of the documents.

  python train_tokenizer.py --data data --out tokenizer
"""

import argparse
import json
import pathlib

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from chatml import END, SPECIAL_TOKENS, START, TEMPLATE, render

SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BATCH = 20000


def train(documents: list[list[dict]], vocab: int) -> Tokenizer:
    """Learn the merges from roles and contents."""
    tokenizer = Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(SPLIT), "isolated"), byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = (message["role"] + "\n" + message["content"] for document in documents for message in document)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def config() -> dict:
    """tokenizer_config.json."""
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": SPECIAL_TOKENS[END],
        "pad_token": SPECIAL_TOKENS[0],
        "unk_token": None,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 2048,
        "chat_template": TEMPLATE,
        "added_tokens_decoder": {str(i): {"content": token} | flags for i, token in enumerate(SPECIAL_TOKENS)},
    }


def loss_mask(ids: list[int], assistant: int, newline: int) -> np.ndarray:
    """1 on the tokens that the assistant writes, the closing <|im_end|> included."""
    mask = np.zeros(len(ids), np.uint8)
    i = 0
    while i < len(ids) - 2:
        if ids[i : i + 3] == [START, assistant, newline]:
            end = ids.index(END, i)
            mask[i + 3 : end + 1] = 1
            i = end
        i += 1
    return mask


def encode(tokenizer: Tokenizer, chats: list[str], max_length: int) -> dict[str, np.ndarray]:
    """The arrays of train.npz of rendered chats; longer ones are cut."""
    assistant, newline = tokenizer.encode("assistant\n").ids
    ids, masks, offsets = [], [], [0]
    for start in range(0, len(chats), BATCH):
        for encoding in tokenizer.encode_batch_fast(chats[start : start + BATCH]):
            kept = encoding.ids[:max_length]
            ids.append(np.array(kept, np.uint16))
            masks.append(loss_mask(encoding.ids, assistant, newline)[:max_length])
            offsets.append(offsets[-1] + len(kept))
    return {"ids": np.concatenate(ids), "mask": np.concatenate(masks), "offsets": np.array(offsets, np.int64)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path, default="data", help="folder of train.jsonl")
    parser.add_argument("--out", type=pathlib.Path, default="tokenizer")
    parser.add_argument("--vocab", type=int, default=4096)
    parser.add_argument("--sample", type=int, default=60000, help="documents the merges are learned from")
    parser.add_argument("--max-length", type=int, default=1800, help="tokens of a document")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    with open(arguments.data / "train.jsonl") as file:
        documents = [json.loads(line)["messages"] for line in file]
    tokenizer = train(documents[: arguments.sample], arguments.vocab)
    tokenizer.save(str(arguments.out / "tokenizer.json"))
    (arguments.out / "tokenizer_config.json").write_text(json.dumps(config(), indent=2))
    arrays = encode(tokenizer, [render(document) for document in documents], arguments.max_length)
    np.savez(arguments.data / "train.npz", **arrays)
    lengths = np.diff(arrays["offsets"])
    print(
        f"vocab {tokenizer.get_vocab_size()}, {len(lengths)} documents, {lengths.sum()} tokens, mean {lengths.mean():.0f},"
        f" max {lengths.max()}, assistant share {arrays['mask'].mean():.2f}"
    )


if __name__ == "__main__":
    main()
