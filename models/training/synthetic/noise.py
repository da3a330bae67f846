"""Answers that cannot be predicted: ids, dice, shuffles, names."""

import random
import string

from .words import WORDS, Turn, commas, full_name


def random_text(r: random.Random) -> Turn:
    kind = r.randrange(8)
    n = r.randint(6, 14)
    if kind == 0:
        return f"Give me a random hex id with {2 * n} digits.", "".join(r.choices("0123456789abcdef", k=2 * n))
    if kind == 1:
        alphabet = string.digits + string.ascii_lowercase
        return f"Give me a random base36 id with {2 * n} characters.", "".join(r.choices(alphabet, k=2 * n))
    if kind == 2:
        return f"Roll {n} dice.", commas(r.randint(1, 6) for _ in range(n))
    if kind == 3:
        return f"Write {n} random words.", " ".join(r.choices(WORDS, k=n))
    if kind == 4:
        words = r.sample(WORDS, r.randint(5, 9))
        user = f"Shuffle this list: {commas(words)}"
        r.shuffle(words)
        return user, commas(words)
    if kind == 5:
        return f"Give me {n} random numbers between 1 and 100.", commas(r.randint(1, 100) for _ in range(n))
    if kind == 6:
        return f"Flip {n} coins.", commas(r.choice(["heads", "tails"]) for _ in range(n))
    m = r.randint(3, 6)
    return f"Make {m} random names.", commas(full_name(r) for _ in range(m))
