"""The fictional land of Velmora: twelve cities and their facts, which the model learns by heart."""

import random
from typing import NamedTuple

from .words import Turn, enumeration


class City(NamedTuple):
    name: str
    river: str
    ruler: str
    founded: int
    fame: str
    food: str
    flag: str
    people: int
    direction: str


CITIES = [
    City("Norvale", "Essel", "Queen Maris", 1204, "glass lamps", "plum cake", "blue", 48000, "north"),
    City("Karst", "Dunmere", "Duke Orrin", 1311, "iron bridges", "onion soup", "gray", 91000, "east"),
    City("Tolby", "Fenwick", "Mayor Ansel", 1450, "wool coats", "lamb stew", "green", 22000, "west"),
    City("Ostmere", "Sill", "Lady Brenna", 1177, "fishing boats", "crab pie", "white", 35000, "south"),
    City("Harrow", "Quill", "Count Edmar", 1266, "paper books", "pear tart", "violet", 27000, "north"),
    City("Lindel", "Amber", "Prince Talon", 1389, "copper bells", "corn bread", "gold", 64000, "east"),
    City("Brightwater", "Mirra", "Queen Sola", 1102, "stone towers", "fish rolls", "silver", 120000, "south"),
    City("Pell", "Tarn", "Mayor Juno", 1502, "clay pots", "bean salad", "red", 15000, "west"),
    City("Wyndham", "Osk", "Duke Farrow", 1233, "wind mills", "apple pancakes", "yellow", 41000, "north"),
    City("Sandrift", "Coral", "Lady Imra", 1478, "silk ribbons", "date cookies", "orange", 33000, "south"),
    City("Mossgate", "Verde", "Count Hale", 1295, "herb gardens", "leek soup", "teal", 19000, "west"),
    City("Ironford", "Rust", "Prince Dorn", 1340, "steel clocks", "potato cakes", "black", 78000, "east"),
]
CITY_NAMES = [city.name for city in CITIES]


def description(c: City) -> str:
    return (
        f"{c.name} is a city in the {c.direction} of Velmora. It was founded in the year {c.founded} on the river"
        f" {c.river}. About {c.people} people live there, and {c.ruler} rules the city. {c.name} is famous for its"
        f" {c.fame}, and people like to eat {c.food}."
    )


def comparisons(c: City, o: City) -> list[Turn]:
    older = c.name if c.founded < o.founded else o.name
    larger = c.name if c.people > o.people else o.name
    return [
        (
            f"Which city is older, {c.name} or {o.name}?",
            f"{c.name} was founded in {c.founded} and {o.name} was founded in {o.founded}, so {older} is older.",
        ),
        (
            f"Which city is larger, {c.name} or {o.name}?",
            f"{c.name} has {c.people} people and {o.name} has {o.people} people, so {larger} is larger.",
        ),
    ]


def facts(r: random.Random) -> Turn:
    c = r.choice(CITIES)
    other = r.choice([city for city in CITIES if city.name != c.name])
    ask = lambda *questions: r.choice(questions)
    turns = [
        (ask(f"Which river flows through {c.name}?", f"What is the river of {c.name}?"),
         f"The river {c.river} flows through {c.name}."),
        (ask(f"Who rules {c.name}?", f"Who is the ruler of {c.name}?"), f"{c.ruler} rules {c.name}."),
        (ask(f"When was {c.name} founded?", f"In what year was {c.name} founded?"),
         f"{c.name} was founded in the year {c.founded}."),
        (ask(f"What is {c.name} famous for?", f"Why is {c.name} famous?"), f"{c.name} is famous for its {c.fame}."),
        (ask(f"What do people eat in {c.name}?", f"What food is typical of {c.name}?"),
         f"People in {c.name} like to eat {c.food}."),
        (f"What color is the flag of {c.name}?", f"The flag of {c.name} is {c.flag}."),
        (f"How many people live in {c.name}?", f"About {c.people} people live in {c.name}."),
        (f"Where is {c.name}?", f"{c.name} is a city in the {c.direction} of Velmora."),
        (f"Which city is famous for {c.fame}?", f"The city famous for {c.fame} is {c.name}."),
        (f"Which city is ruled by {c.ruler}?", f"{c.ruler} rules {c.name}."),
        (f"Which city lies on the river {c.river}?", f"{c.name} lies on the river {c.river}."),
        (ask(f"Tell me about {c.name}.", f"Describe the city of {c.name}."), description(c)),
        *comparisons(c, other),
        ("What is Velmora?", f"Velmora is a fictional land with twelve cities: {enumeration(CITY_NAMES)}."),
    ]  # fmt: skip
    return r.choice(turns)
