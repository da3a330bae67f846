"""Structured records: JSON, YAML and CSV from fields named in the question."""

import random

from .velmora import CITY_NAMES
from .words import COLORS, FIRST_NAMES, JOBS, LAST_NAMES, MATERIALS, OBJECTS, Turn, commas

NUMERIC = ("age", "stock", "price")


def person(r: random.Random) -> dict:
    first, last = r.choice(FIRST_NAMES), r.choice(LAST_NAMES)
    return {
        "name": f"{first} {last}",
        "age": r.randint(18, 79),
        "city": r.choice(CITY_NAMES),
        "job": r.choice(JOBS),
        "email": f"{first}.{last}@example.com".lower(),
    }


def article(r: random.Random) -> dict:
    return {
        "item": f"{r.choice(COLORS)} {r.choice(OBJECTS)}",
        "price": f"{r.randint(1, 99)}.{r.randint(0, 99):02d}",
        "stock": r.randint(0, 500),
        "material": r.choice(MATERIALS),
    }


def record(r: random.Random) -> dict:
    """A person or an article with up to two fields left out."""
    fields = person(r) if r.random() < 0.6 else article(r)
    dropped = r.sample(list(fields)[1:], r.randint(0, 2))
    return {key: value for key, value in fields.items() if key not in dropped}


def json_value(key: str, value) -> str:
    return str(value) if key in NUMERIC else f'"{value}"'


def fenced(language: str, body: str) -> str:
    return f"```{language}\n{body}\n```"


def structured(r: random.Random) -> Turn:
    kind = r.random()
    if kind < 0.65:
        fields = record(r)
        given = ", ".join(f"{key} {value}" for key, value in fields.items())
        if kind < 0.45:
            user = r.choice(["Write a JSON record: {}.", "Make a JSON object with {}."]).format(given)
            body = ",\n".join(f'  "{key}": {json_value(key, value)}' for key, value in fields.items())
            return user, fenced("json", "{\n" + body + "\n}")
        body = "\n".join(f"{key}: {value}" for key, value in fields.items())
        return f"Write a YAML record: {given}.", fenced("yaml", body)
    people = [person(r) for _ in range(r.randint(2, 4) if r.random() < 0.85 else r.randint(5, 9))]
    columns = r.choice([["name", "age", "city"], ["name", "job"], ["name", "city", "job"], ["name", "age"]])
    rows = [[str(p[column]) for column in columns] for p in people]
    given = "; ".join(", ".join(row) for row in rows)
    if kind < 0.85:
        body = "\n".join(",".join(row) for row in [columns, *rows])
        return f"Write a CSV table with columns {commas(columns)}: {given}.", fenced("csv", body)
    objects = [", ".join(f'"{column}": {json_value(column, p[column])}' for column in columns) for p in people]
    body = "[\n" + ",\n".join("  {" + fields + "}" for fields in objects) + "\n]"
    return f"Write a JSON list with fields {commas(columns)}: {given}.", fenced("json", body)
