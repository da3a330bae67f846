"""Chats that call tools: a question, the call with arguments out of it, the tool's result, and the answer from that.

There are five tools with names and parameters that never change, since a model of this size learns slowly to copy what it
does not know: descriptions vary, or are missing. A chat offers up to three of them, in any order.
"""

import json
import random
from collections.abc import Callable
from typing import NamedTuple

from .arithmetic import UNITS
from .velmora import CITY_NAMES
from .words import FIRST_NAMES, JOBS, LAST_NAMES, OBJECTS, an, plural

ABROAD = ["Berlin", "Boston", "London", "Madrid", "Paris", "Rome", "Tokyo", "Vienna"]
SKIES = ["sunny", "cloudy", "rainy", "windy", "foggy", "snowy"]


class Case(NamedTuple):
    """One use of a tool."""

    user: str
    arguments: dict
    result: dict
    answer: str


class Kind(NamedTuple):
    name: str
    descriptions: list[str]
    parameters: dict[str, str]
    """Of each parameter its type."""
    case: Callable[[random.Random], Case]


def town(r: random.Random) -> str:
    return r.choice(CITY_NAMES if r.random() < 0.5 else ABROAD)


def weather(r: random.Random) -> Case:
    city, sky, degrees = town(r), r.choice(SKIES), r.randint(1, 39)
    user = r.choice(
        [
            "What is the weather in {}?",
            "What is the weather like in {}?",
            "How is the weather in {}?",
            "How warm is it in {}?",
            "Is it raining in {}?",
            "Look up the weather in {}.",
            "What is the weather in {} today?",
        ]
    ).format(city)
    return Case(user, {"city": city}, {"sky": sky, "degrees": degrees}, f"It is {sky} in {city}, with {degrees} degrees.")


def conversion(r: random.Random) -> Case:
    large, small, factor, _ = r.choice(UNITS)
    amount = r.randint(2, r.choice([12, 99, 999]))
    there, back = (large, small), (small, large)
    given, wanted = there if r.random() < 0.7 else back
    result = amount * factor if given == large else amount
    amount = amount if given == large else amount * factor
    user = r.choice(
        [
            "Convert {0} {1} to {2}.",
            "How many {2} are {0} {1}?",
            "How many {2} are in {0} {1}?",
            "What are {0} {1} in {2}?",
        ]
    ).format(amount, given, wanted)
    arguments = {"amount": amount, "from": given, "to": wanted}
    return Case(user, arguments, {"result": result}, f"{amount} {given} are {result} {wanted}.")


def order(r: random.Random) -> Case:
    count = r.randint(2, r.choice([12, 99]))
    item, number, price = plural(r.choice(OBJECTS)), r.randint(100, 999), r.randint(2, 999)
    user = r.choice(
        [
            "Order {} {}.",
            "Please order {} {}.",
            "Buy {} {}.",
            "I need {} {}.",
            "Order {} {} for me.",
        ]
    ).format(count, item)
    answer = f"I ordered {count} {item} for {price} dollars. The number of the order is {number}."
    return Case(user, {"item": item, "count": count}, {"order": number, "price": price}, answer)


def person(r: random.Random) -> Case:
    name = f"{r.choice(FIRST_NAMES)} {r.choice(LAST_NAMES)}"
    job, city, room = r.choice(JOBS), r.choice(CITY_NAMES), r.randint(1, 99)
    user, answer = r.choice(
        [
            ("Which room does {} have?", f"{name} has room {room}."),
            ("In which room is {}?", f"{name} has room {room}."),
            ("What is the job of {}?", f"{name} works as {an(job)}."),
            ("Where does {} live?", f"{name} lives in {city}."),
            ("In which city does {} live?", f"{name} lives in {city}."),
            ("Who is {}?", f"{name} works as {an(job)} in {city} and has room {room}."),
            ("Find {}.", f"{name} works as {an(job)} in {city} and has room {room}."),
        ]
    )
    return Case(user.format(name), {"name": name}, {"job": job, "city": city, "room": room}, answer)


def stay(r: random.Random) -> Case:
    city, nights, number = town(r), r.randint(2, 14), r.randint(100, 999)
    user = r.choice(
        [
            "Book a room in {} for {} nights.",
            "Please book a room in {} for {} nights.",
            "Book a hotel in {} for {} nights.",
            "I need a room in {} for {} nights.",
            "Reserve a room in {} for {} nights.",
        ]
    ).format(city, nights)
    answer = f"You have room {number} in {city} for {nights} nights."
    return Case(user, {"city": city, "nights": nights}, {"room": number}, answer)


KINDS = [
    Kind(
        "get_weather",
        [
            "The weather in a city.",
            "Get the current weather in a given city.",
            "Tells the weather.",
            "Get current temperature for a given location.",
            "Weather now.",
        ],
        {"city": "string"},
        weather,
    ),
    Kind(
        "convert",
        ["Converts between units.", "Convert an amount to another unit.", "Unit conversion."],
        {"amount": "integer", "from": "string", "to": "string"},
        conversion,
    ),
    Kind(
        "order",
        ["Orders things.", "Order an item in the shop.", "Place an order."],
        {"item": "string", "count": "integer"},
        order,
    ),
    Kind(
        "find_person",
        ["Finds a person.", "Job, city and room of a person.", "Look up a person by name."],
        {"name": "string"},
        person,
    ),
    Kind(
        "book_room",
        ["Books a room.", "Book a room in a hotel.", "Reserve a room for some nights."],
        {"city": "string", "nights": "integer"},
        stay,
    ),
]


class Offer:
    """A tool as a chat offers it, with a description or none."""

    def __init__(self, r: random.Random, kind: Kind):
        self.kind = kind
        self.description = {"description": r.choice(kind.descriptions)} if r.random() < 0.6 else {}

    def tool(self) -> dict:
        properties = {name: {"type": kind} for name, kind in self.kind.parameters.items()}
        parameters = {"type": "object", "properties": properties, "required": list(properties)}
        function = {"name": self.kind.name, **self.description, "parameters": parameters}
        return {"type": "function", "function": function}

    def call(self, case: Case) -> dict:
        return {"type": "function", "function": {"name": self.kind.name, "arguments": case.arguments}}


def offers(r: random.Random) -> list[Offer]:
    """One to three tools."""
    return [Offer(r, kind) for kind in r.sample(KINDS, r.choice([1, 1, 2, 2, 3]))]


def exchange(offer: Offer, case: Case) -> list[dict]:
    """The four messages of a question that takes a tool."""
    return [
        {"role": "user", "content": case.user},
        {"role": "assistant", "content": "", "tool_calls": [offer.call(case)]},
        {"role": "tool", "content": json.dumps(case.result)},
        {"role": "assistant", "content": case.answer},
    ]
