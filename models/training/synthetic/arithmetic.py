"""Arithmetic with worked steps, times tables and unit conversion."""

import random

from .words import Turn

COLUMNS = ["Ones", "Tens", "Hundreds", "Thousands"]
UNITS = [  # large unit, small unit, factor, largest amount asked for
    ("kilometers", "meters", 1000, 99),
    ("meters", "centimeters", 100, 99),
    ("kilograms", "grams", 1000, 99),
    ("liters", "milliliters", 1000, 99),
    ("centimeters", "millimeters", 10, 99),
    ("hours", "minutes", 60, 12),
    ("minutes", "seconds", 60, 12),
    ("days", "hours", 24, 10),
    ("weeks", "days", 7, 12),
    ("feet", "inches", 12, 12),
    ("yards", "feet", 3, 30),
    ("dozens", "items", 12, 12),
    ("years", "months", 12, 12),
    ("dollars", "cents", 100, 99),
]


def digits(number: int, count: int) -> list[int]:
    """The last digit first."""
    return [int(c) for c in str(number).zfill(count)][::-1]


def addition_steps(a: int, b: int) -> str:
    n = max(len(str(a)), len(str(b)))
    carry, lines = False, []
    for column, x, y in zip(COLUMNS, digits(a, n), digits(b, n)):
        total = x + y + carry
        left = f"{x} + {y}" + (" + 1" if carry else "")
        lines.append(f"{column}: {left} = {total}" + (f", write {total - 10}, carry 1." if total > 9 else "."))
        carry = total > 9
    return "\n".join(lines) + f"\n{a} + {b} = {a + b}"


def subtraction_steps(a: int, b: int) -> str:
    n = len(str(a))
    borrow, lines = False, []
    for column, x, y in zip(COLUMNS, digits(a, n), digits(b, n)):
        less = y + borrow
        left = f"{x} - {y}" + (" - 1" if borrow else "")
        if x < less:
            lines.append(f"{column}: {left}, borrow: {x + 10} - {less} = {x + 10 - less}.")
        else:
            lines.append(f"{column}: {left} = {x - less}.")
        borrow = x < less
    return "\n".join(lines) + f"\n{a} - {b} = {a - b}"


def arithmetic(r: random.Random) -> Turn:
    kind = r.random()
    if kind < 0.45:
        n = r.choice([1, 2, 2, 3, 3, 3])
        a, b = r.randint(1, 10**n - 1), r.randint(1, 10 ** r.randint(max(1, n - 1), n) - 1)
        questions = ["What is {} + {}?", "What is {} plus {}?", "{} + {} = ?", "Add {} and {}."]
        user = r.choice([*questions, "Work out {} + {} step by step."]).format(a, b)
        return user, addition_steps(a, b)
    if kind < 0.8:
        a = r.randint(2, 10 ** r.choice([1, 2, 2, 3, 3, 3]) - 1)
        b = r.randint(1, a)
        questions = ["What is {} - {}?", "What is {} minus {}?", "{} - {} = ?", "Work out {} - {} step by step."]
        return r.choice(questions).format(a, b), subtraction_steps(a, b)
    a, b = r.randint(11, 99), r.randint(2, 9)
    tens, ones = a // 10 * 10, a % 10
    steps = [
        f"{tens} x {b} = {tens * b}.",
        f"{ones} x {b} = {ones * b}.",
        f"{tens * b} + {ones * b} = {a * b}.",
        f"{a} x {b} = {a * b}",
    ]
    return f"What is {a} x {b}?", "\n".join(steps)


def tables(r: random.Random) -> Turn:
    a, b = r.randint(2, 12), r.randint(1, 12)
    if r.random() < 0.5:
        n = r.choice([10, 12])
        user = f"Write the {a} times table" + (" up to 12." if n == 12 else ".")
        return user, "\n".join(f"{a} x {i} = {a * i}" for i in range(1, n + 1))
    if r.random() < 0.5:
        return f"What is {a} times {b}?", f"{a} x {b} = {a * b}"
    return f"Divide {a * b} by {a}.", f"{a * b} / {a} = {b}"


def units(r: random.Random) -> Turn:
    large, small, factor, most = r.choice(UNITS)
    n = r.randint(2, most)
    one = {"feet": "foot"}.get(large, large[:-1])
    rule = f"1 {one} = {factor} {small}"
    if r.random() < 0.7:
        user = r.choice(["Convert {} {} to {}.", "How many {2} are in {0} {1}?"]).format(n, large, small)
        return user, f"{rule}, so {n} {large} = {n} x {factor} = {n * factor} {small}."
    user = f"Convert {n * factor} {small} to {large}."
    return user, f"{rule}, so {n * factor} {small} = {n * factor} / {factor} = {n} {large}."
