"""Answers in JSON alone, as a schema in the request demands them: facts of a short text under the names of their fields."""

import json
import random

from .records import person
from .words import COLORS, MATERIALS, OBJECTS, Turn, an, enumeration, plural


def about_person(r: random.Random) -> tuple[dict, str]:
    p = person(r)
    job = an(p["job"])
    text = r.choice(
        [
            "{name} is {age} years old and works as {job} in {city}.",
            "{name}, {age}, is {job} in {city}.",
            "{name} is {job} from {city} and {age} years old.",
            "In {city} lives {name}, {job} of {age} years.",
            "My name is {name}, I am {age} years old, I live in {city} and work as {job}.",
        ]
    ).format(**p | {"job": job})
    return {key: p[key] for key in ("name", "age", "job", "city")}, text


def about_order(r: random.Random) -> tuple[dict, str]:
    color, item, material = r.choice(COLORS), r.choice(OBJECTS), r.choice(MATERIALS)
    count, price = r.randint(2, 99), r.randint(2, 199)
    text = r.choice(
        [
            "I want {count} {color} {items} of {material} for {price} dollars each.",
            "Please send me {count} {color} {items} of {material}. Each costs {price} dollars.",
            "The shop has {count} {color} {items} made of {material}, for {price} dollars each.",
        ]
    ).format(count=count, color=color, items=plural(item), material=material, price=price)
    return {"item": plural(item), "color": color, "material": material, "count": count, "price": price}, text


def json_answer(r: random.Random) -> Turn:
    """A text, the wish for JSON, and one line of JSON. A wish without names of fields is for all of them, in order."""
    fields, text = r.choice([about_person, about_order])(r)
    if r.random() < 0.5:
        wish = r.choice(["Answer in JSON.", "Give me JSON.", "Extract the data as JSON.", "Write this as JSON."])
    else:
        chosen = r.sample(list(fields), r.randint(1, len(fields)))
        fields = {key: value for key, value in fields.items() if key in chosen}
        wishes = ["Give me {} as JSON.", "Answer in JSON with {}.", "Extract {} as JSON.", "Write {} as JSON."]
        wish = r.choice(wishes).format(enumeration(list(fields)))
    return (f"{text} {wish}" if r.random() < 0.7 else f"{wish[:-1]}: {text}"), json.dumps(fields)
