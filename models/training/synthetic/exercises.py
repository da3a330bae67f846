"""Counting, sorting, spelling and reversing."""

import random

from .words import SORTABLE, WORDS, Turn, commas


def count_up(r: random.Random) -> Turn:
    a = r.randint(0, 180)
    b = a + (r.randint(4, 18) if r.random() < 0.92 else r.randint(30, 100))
    if r.random() < 0.12:
        b = r.randint(3, 60)
        user = r.choice(["Count to {}.", "Count up to {}.", "Can you count to {}?"]).format(b)
        return user, commas(range(1, b + 1))
    user = r.choice(["Count from {} to {}.", "Please count from {} to {}.", "List the numbers from {} to {}."])
    return user.format(a, b), commas(range(a, b + 1))


def count_down(r: random.Random) -> Turn:
    b = r.randint(0, 90)
    a = b + r.randint(4, 15)
    user = r.choice(["Count down from {} to {}.", "Count backwards from {} to {}."]).format(a, b)
    return user, commas(range(a, b - 1, -1))


def count_in_steps(r: random.Random) -> Turn:
    step = r.randint(2, 10)
    a = r.randint(0, 20) * r.choice([1, step])
    n = r.randint(5, 10)
    return f"Count from {a} to {a + step * n} in steps of {step}.", commas(range(a, a + step * n + 1, step))


def multiples(r: random.Random) -> Turn:
    m, n = r.randint(2, 12), r.randint(4, 10)
    return f"List the first {n} multiples of {m}.", commas(m * i for i in range(1, n + 1))


def sequence(r: random.Random) -> Turn:
    step = r.choice([1, 2, 3, 4, 5, 10, 11, 20, 25])
    a = r.randint(0, 60)
    n = r.randint(3, 5)
    user = f"Continue the sequence: {commas(a + step * i for i in range(n))}"
    return user, commas(a + step * i for i in range(n, n + 6))


def odd_or_even(r: random.Random) -> Turn:
    a = r.randint(0, 60) * 2
    n = r.randint(4, 10)
    odd = r.randint(0, 1)
    user = f"List the {'odd' if odd else 'even'} numbers from {a} to {a + 2 * n}."
    return user, commas(range(a + odd, a + 2 * n + 1, 2))


def counting(r: random.Random) -> Turn:
    kinds = [count_up, count_down, count_in_steps, multiples, sequence, odd_or_even]
    return kinds[r.randrange(6)](r)


def sorting(r: random.Random) -> Turn:
    if r.random() < 0.55:
        numbers = r.sample(range(1, 100), r.randint(3, 8))
        descending = r.random() < 0.4
        order = "largest to smallest" if descending else "smallest to largest"
        return f"Sort these numbers from {order}: {commas(numbers)}", commas(sorted(numbers, reverse=descending))
    words = r.sample(SORTABLE, r.randint(3, 6))
    return f"Sort these words in alphabetical order: {commas(words)}", commas(sorted(words))


def spelling(r: random.Random) -> Turn:
    word = r.choice(WORDS)
    kind = r.randrange(5)
    if kind <= 1:
        user = r.choice(["Spell the word {}.", "How do you spell {}?", "Spell: {}"]).format(word)
        return user, "-".join(word)
    if kind == 2:
        return f"Spell the word {word} backwards.", "-".join(word[::-1])
    if kind == 3:
        return f"How many letters are in the word {word}?", f"{'-'.join(word)} has {len(word)} letters."
    words = r.sample(WORDS, r.randint(2, 3))
    return f"Spell these words: {commas(words)}", "\n".join(f"{w}: {'-'.join(w)}" for w in words)


def reversing(r: random.Random) -> Turn:
    if r.random() < 0.5:
        items = r.sample(WORDS, r.randint(3, 8))
    else:
        items = [r.randint(1, 99) for _ in range(r.randint(3, 9))]
    user = r.choice(["Reverse this list: {}", "Write this list in reverse order: {}"]).format(commas(items))
    return user, commas(items[::-1])
