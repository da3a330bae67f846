"""Questions about a long text in the prompt, and things said in earlier turns."""

import random

from .prose import sentence
from .records import person
from .velmora import CITY_NAMES
from .words import ANIMALS, COLORS, FIRST_NAMES, WORDS, Turn, an, capitalized


def staff_list(r: random.Random, n: int) -> Turn:
    staff, names = [], set()
    while len(staff) < n:
        p = person(r)
        if p["name"] not in names:
            names.add(p["name"])
            staff.append((p, r.randint(1, 99)))
    text = "\n".join(f"- {p['name']}, {p['job']}, {p['city']}, room {room}" for p, room in staff)
    p, room = r.choice(staff)
    name = p["name"]
    question, answer = [
        (f"Which room does {name} have?", f"{name} has room {room}."),
        (f"What is the job of {name}?", f"{name} works as {an(p['job'])}."),
        (f"In which city does {name} live?", f"{name} lives in {p['city']}."),
    ][r.randrange(3)]
    return f"Here is a staff list:\n{text}\n{question}", answer


def settings(r: random.Random, n: int) -> Turn:
    pairs = [(key, r.randint(100, 999)) for key in r.sample(WORDS, n)]
    key, value = pairs[r.randrange(n)]
    text = "\n".join(f"{k} = {v}" for k, v in pairs)
    return f"Here are some settings:\n{text}\nWhat is the value of {key}?", f"The value of {key} is {value}."


def long_context(r: random.Random) -> Turn:
    n = int(6 * (110 / 6) ** r.random())  # lines or sentences, evenly spread over the logarithm
    kind = r.randrange(4)
    if kind <= 1:
        return staff_list(r, n)
    if kind == 2:
        return settings(r, n)
    sentences = [sentence(r) for _ in range(n)]
    i = r.choice([0, n - 1])
    which = "first" if i == 0 else "last"
    return f"Read this text: {' '.join(sentences)}\nQuote the {which} sentence.", f'"{sentences[i]}"'


def statement(r: random.Random) -> tuple[Turn, Turn]:
    """Something the user states, and the question for it that comes later."""
    name, color, animal, city = r.choice(FIRST_NAMES), r.choice(COLORS), r.choice(ANIMALS), r.choice(CITY_NAMES)
    return r.choice(
        [
            (
                (f"My name is {name}.", f"Nice to meet you, {name}."),
                ("What is my name?", f"Your name is {name}."),
            ),
            (
                (f"My favorite color is {color}.", f"{capitalized(color)} is a nice color."),
                ("What is my favorite color?", f"Your favorite color is {color}."),
            ),
            (
                (f"I have a pet {animal}.", f"A {animal} is a fine pet."),
                ("What pet do I have?", f"You have a pet {animal}."),
            ),
            (
                (f"I live in {city}.", f"{city} is a fine city."),
                ("Where do I live?", f"You live in {city}."),
            ),
        ]
    )
