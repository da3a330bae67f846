"""Copying, quoting and editing given text, and lists."""

import random

from .prose import sentence
from .words import CATEGORIES, NUMBERS, WORDS, Turn, capitalized, commas, enumeration


def replace_word(r: random.Random, text: str) -> Turn:
    """Replace a word that occurs once; the text as it is where no word of the stock does."""
    once = [word for word in {w.strip(".") for w in text.split()} if word in WORDS and text.count(word) == 1]
    if not once:
        return f"Copy this text: {text}", text
    old = r.choice(sorted(once))
    new = r.choice(WORDS)
    return f"Replace the word {old} with the word {new}: {text}", text.replace(old, new)


def copy(r: random.Random) -> Turn:
    kind = r.randrange(7)
    n = r.randint(1, 4) if r.random() < 0.88 else r.randint(5, 14)
    sentences = [sentence(r) for _ in range(n)]
    text = " ".join(sentences)
    if kind <= 1:
        user = r.choice(["Repeat this text exactly: {}", "Copy this text: {}", "Say this back to me: {}"])
        return user.format(text), text
    if kind == 2:
        return replace_word(r, text)
    if kind == 3:
        return f"Put each sentence on its own line: {text}", "\n".join(sentences)
    if kind == 4:
        sentences = [sentence(r) for _ in range(r.randint(3, 4))]
        i = r.randrange(3)
        which = ["first", "second", "third"][i]
        return f"Quote the {which} sentence of this text: {' '.join(sentences)}", f'"{sentences[i]}"'
    if kind == 5:
        return f"Write this text as a bullet list: {text}", "\n".join("- " + s for s in sentences)
    words = r.sample(WORDS, r.randint(4, 12))
    return f"Repeat these words: {' '.join(words)}", " ".join(words)


def numbered(items: list[str]) -> str:
    return "\n".join(f"{i + 1}. {capitalized(item)}" for i, item in enumerate(items))


def lists(r: random.Random) -> Turn:
    kind = r.randrange(4)
    category = r.choice(list(CATEGORIES))
    n = r.randint(3, 8)
    members = CATEGORIES[category][:n]
    if kind == 0:
        return f"List {NUMBERS[n]} {category}.", numbered(members)
    if kind == 1:
        return f"Name {NUMBERS[n]} {category}.", capitalized(enumeration(members)) + "."
    words = r.sample(WORDS, n)
    if kind == 2:
        return f"Make a numbered list: {commas(words)}", numbered(words)
    return f"Make a bullet list: {commas(words)}", "\n".join(f"- {capitalized(word)}" for word in words)
