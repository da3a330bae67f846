"""Texts from small grammars: fluent, with no single right answer."""

import random
from dataclasses import dataclass

from .velmora import CITY_NAMES
from .words import (
    ADJECTIVES,
    ANIMALS,
    COLORS,
    FIRST_NAMES,
    MATERIALS,
    MISCELLANEOUS,
    OBJECTS,
    PLACES,
    VERBS,
    Turn,
    an,
    capitalized,
    plural,
)

BRANDS = ["Lumo", "Nordic", "Terra", "Aero", "Vista", "Orbit", "Solo", "Prime"]
PRODUCTS = """
    backpack blender boot camera chair clock coat desk fan guitar headset jacket kettle keyboard lamp mattress microphone
    mug notebook oven pan pillow radio rug scale sofa speaker table tent toaster umbrella vacuum wallet watch
""".split()
SKIES = ["sunny", "cloudy", "rainy", "windy", "foggy", "snowy", "stormy", "clear"]
DIRECTIONS = "north south east west".split()
RHYMES = [
    ("day", "way", "bay", "hay"),
    ("night", "light", "kite", "knight"),
    ("sea", "tree", "bee", "key"),
    ("sky", "pie", "eye", "fly"),
    ("moon", "noon", "tune", "spoon"),
    ("snow", "crow", "bow", "glow"),
    ("rain", "lane", "train", "grain"),
    ("star", "car", "jar", "guitar"),
    ("spring", "ring", "wing", "king"),
    ("stone", "bone", "throne", "cone"),
]


def sentence(r: random.Random) -> str:
    stock = (ADJECTIVES, ADJECTIVES, OBJECTS, PLACES, FIRST_NAMES, VERBS, ANIMALS)
    adjective, second, thing, place, name, verb, animal = map(r.choice, stock)
    return r.choice(
        [
            f"The {adjective} {animal} sat by the {place}.",
            f"{name} put the {thing} on the {r.choice(['shelf', 'table', 'chair', 'floor'])}.",
            f"In the {place} there was {an(adjective)} {thing}.",
            f"{name} and {r.choice(FIRST_NAMES)} wanted to {verb} near the {place}.",
            f"Every morning the {animal} walked past the {place}.",
            f"The {thing} was {adjective} and {second}.",
            f"{name} saw {an(adjective)} {animal} at the {place}.",
            f"Nobody knew why the {thing} was {adjective}.",
            f"The {place} was {adjective} that day.",
            f"A {r.choice(COLORS)} {thing} stood in the {place}.",
        ]
    )


@dataclass
class Cast:
    """Who and what a story is about: the hero and its kind, the other one, a thing, a place."""

    adjective: str
    animal: str
    thing: str
    place: str
    hero: str
    other_animal: str = ""
    other: str = ""
    material: str = ""
    color: str = ""


def opening(r: random.Random, c: Cast) -> list[str]:
    verb, adjective = (lambda: r.choice(VERBS)), (lambda: r.choice(ADJECTIVES))
    whole_day = ["morning", "evening", "cold night", "sunny day"]
    return [
        r.choice(
            [
                f"Once upon a time there was {an(c.adjective)} {c.animal} named {c.hero}.",
                f"Long ago, {an(c.adjective)} {c.animal} named {c.hero} lived near the {c.place}.",
                f"There once was {an(c.adjective)} {c.animal}. The name of the {c.animal} was {c.hero}.",
            ]
        ),
        r.choice(
            [
                f"{c.hero} lived in a small house by the {c.place}.",
                f"Every day {c.hero} walked to the {c.place} to {verb()} and {verb()}.",
                f"{c.hero} loved the {c.place} more than any other place.",
            ]
        ),
        r.choice(
            [
                f"One {r.choice(whole_day)}, {c.hero} found {an(c.color)} {c.thing} made of {c.material}.",
                f"One day, {c.hero} saw {an(c.thing)} under {an(adjective())} tree.",
                f"One {r.choice(['morning', 'evening'])}, a stranger gave {c.hero} {an(c.thing)}.",
            ]
        ),
        r.choice(
            [
                f'"What {an(adjective())} {c.thing}!" said {c.hero}.',
                f'"I will keep this {c.thing} safe," said {c.hero}.',
                f'"Who lost this {c.thing}?" asked {c.hero}.',
            ]
        ),
    ]


def turning(r: random.Random, c: Cast) -> list[str]:
    verb, adjective, place = (lambda: r.choice(VERBS)), (lambda: r.choice(ADJECTIVES)), (lambda: r.choice(PLACES))
    return [
        r.choice(
            [
                f"But {an(adjective())} {c.other_animal} named {c.other} wanted the {c.thing} too.",
                f"Then the {r.choice(['wind', 'rain', 'snow', 'storm'])} came and the {c.thing} was lost, but"
                f" {an(adjective())} {c.other_animal} named {c.other} came to help.",
                f"Soon {c.other}, {an(adjective())} {c.other_animal}, came to ask for the {c.thing}.",
            ]
        ),
        r.choice(
            [
                f"{c.hero} and {c.other} looked for a long time and became friends.",
                f'At last {c.hero} said, "We can share it."',
                f"{c.hero} decided to {verb()} with {c.other} instead of being angry.",
                f"They crossed the {place()} and climbed the {place()} together.",
            ]
        ),
        r.choice(
            [
                f"In the end, the {c.thing} made everyone happy.",
                f"From that day on, {c.hero} and {c.other} were best friends.",
                f"And {c.hero} never forgot the {c.thing} again.",
                f"So {c.hero} learned to be {adjective()} and {adjective()}.",
            ]
        ),
    ]


def episode(r: random.Random, c: Cast) -> list[str]:
    """A further episode of a long story, with the same two friends."""
    thing, place = r.choice(OBJECTS), r.choice(PLACES)
    verb, adjective = (lambda: r.choice(VERBS)), (lambda: r.choice(ADJECTIVES))
    return [
        r.choice(
            [
                f"The next {r.choice(['day', 'week', 'spring', 'winter'])}, {c.hero} and {c.other} went to the {place}.",
                f"Some time later, {c.other} asked {c.hero} to come to the {place}.",
            ]
        ),
        r.choice(
            [
                f"There they found {an(adjective())} {thing} that nobody wanted.",
                f"In the {place} they met {an(adjective())} {r.choice(ANIMALS)} who had lost {an(thing)}.",
                f"A {r.choice(COLORS)} {thing} was lying on the ground.",
            ]
        ),
        r.choice(
            [
                f'"We should {verb()} first," said {c.other}.',
                f'"Is this {thing} yours?" asked {c.hero}.',
                f'"Look at this {thing}!" said {c.other}.',
            ]
        ),
        r.choice(
            [
                f"They worked all day, and in the evening the {thing} was as good as new.",
                f"They carried the {thing} home and put it next to the {c.thing}.",
                f"Then they laughed and began to {verb()} by the {place}.",
            ]
        ),
    ]


def story_request(r: random.Random, c: Cast) -> tuple[str, bool]:
    """The user's words, and whether they ask for a long story."""
    user = r.choice(
        [
            f"Write a short story about {an(c.adjective)} {c.animal} and {an(c.thing)}.",
            f"Tell me a story about {an(c.adjective)} {c.animal} who finds {an(c.thing)}.",
            f"Write a story about {an(c.adjective)} {c.animal} in the {c.place}.",
        ]
    )
    if r.random() < 0.12:
        user = r.choice(["Tell me a story.", "Write a story.", "Write a short story.", "Tell me a short story."])
    long = r.random() < 0.15
    if long and "long" not in user:
        user = user.replace("short story", "long story").replace("a story", "a long story")
    return user, long


def story(r: random.Random) -> Turn:
    c = Cast(*map(r.choice, (ADJECTIVES, ANIMALS, OBJECTS, PLACES, FIRST_NAMES)))
    user, long = story_request(r, c)
    c.other_animal = r.choice([animal for animal in ANIMALS if animal != c.animal])
    c.other = r.choice([name for name in FIRST_NAMES if name != c.hero])
    c.material, c.color = r.choice(MATERIALS), r.choice(COLORS)
    sentences = opening(r, c) + turning(r, c)
    if long:
        for _ in range(r.randint(1, 2)):
            sentences += episode(r, c)
        sentences.append("And that was the end of the story.")
    return user, " ".join(sentences)


def product(r: random.Random) -> Turn:
    adjective, kind, color, material = map(r.choice, (ADJECTIVES, PRODUCTS, COLORS, MATERIALS))
    name = r.choice(BRANDS) + " " + capitalized(kind)
    user = r.choice(
        [
            f"Write a product description for {an(color)} {kind} made of {material}.",
            f"Describe a product: {color} {kind}, {material}.",
            f"Write an advertisement for {an(adjective)} {kind}.",
        ]
    )
    sentences = [
        r.choice(
            [
                f"Meet the {name}, {an(adjective)} {kind} for every home.",
                f"The {name} is {an(adjective)} {kind} made of {material}.",
                f"Looking for {an(adjective)} {kind}? Try the {name}.",
            ]
        ),
        r.choice(
            [
                f"Its {color} finish looks good in any room.",
                f"The {color} {material} body is {r.choice(ADJECTIVES)} and {r.choice(ADJECTIVES)}.",
                f"It comes in {color}, {r.choice(COLORS)} and {r.choice(COLORS)}.",
            ]
        ),
        r.choice(
            [
                f"It weighs only {r.randint(1, 9)} kilograms and is easy to carry.",
                f"It is made to last for {r.randint(2, 20)} years.",
                f"You can clean it in {r.randint(1, 9)} minutes.",
            ]
        ),
        r.choice(
            [
                "Order today and get free shipping.",
                f"Price: {r.randint(5, 199)} dollars.",
                "We are sure that you will love it.",
                f"Comes with a {r.randint(1, 5)} year warranty.",
            ]
        ),
    ]
    return user, " ".join(sentences)


def weather(r: random.Random) -> Turn:
    city, sky, high, wind, direction = (
        r.choice(CITY_NAMES),
        r.choice(SKIES),
        r.randint(-5, 35),
        r.randint(3, 60),
        r.choice(DIRECTIONS),
    )
    low = high - r.randint(3, 12)
    today = f"Today will be {sky}, with a high of {high} degrees and a low of {low} degrees."
    blowing = f"The wind will blow from the {direction} at {wind} kilometers per hour."
    if r.random() < 0.5:
        user = (
            f"Write a weather report: city {city}, sky {sky}, high {high}, low {low}, wind {wind} from the {direction}."
        )
        return user, f"Weather report for {city}: {today} {blowing}"
    greetings = [
        f"Good morning from {city}.",
        f"Here is the weather for {city}.",
        f"This is the weather report for {city}.",
    ]
    greeting = r.choice(greetings)
    ending = r.choice(
        [
            f"Tomorrow looks {r.choice(SKIES)}.",
            "Remember to take an umbrella.",
            "It is a good day to walk in the park.",
            "Please drive with care.",
            f"The rest of the week will be {r.choice(SKIES)}.",
        ]
    )
    questions = [
        "Write a weather report for {}.",
        "What is the weather like in {}?",
        "Give me a weather forecast for {}.",
    ]
    return r.choice(questions).format(city), " ".join([greeting, today, blowing, ending])


def couplet(r: random.Random, topic: str) -> list[str]:
    x, y = r.sample(r.choice(RHYMES), 2)
    adjective, verb, color, thing = (
        lambda: r.choice(ADJECTIVES),
        lambda: r.choice(VERBS),
        lambda: r.choice(COLORS),
        lambda: r.choice(MISCELLANEOUS),
    )
    return [
        r.choice(
            [
                f"The {adjective()} {thing()} is near the {x},",
                f"I think of {topic} and the {x},",
                f"Oh {adjective()} {r.choice(ANIMALS)}, sing of the {x},",
                f"The {color()} {thing()} is like the {x},",
            ]
        ),
        r.choice(
            [
                f"and all the {plural(r.choice(ANIMALS))} dream of the {y}.",
                f"a {color()} {thing()} that loves the {y}.",
                f"so {adjective()} and {adjective()} under the {y}.",
                f"we {verb()} and {verb()} beside the {y}.",
            ]
        ),
    ]


def poem(r: random.Random) -> Turn:
    topic = r.choice(
        [
            "the " + r.choice(MISCELLANEOUS),
            an(r.choice(ANIMALS)),
            "the " + r.choice(PLACES),
            r.choice(["spring", "winter", "rain", "snow", "night", "home"]),
        ]
    )
    lines = []
    for _ in range(r.randint(2, 3)):
        lines += couplet(r, topic)
    requests = [f"Write a poem about {topic}.", f"Write a short poem about {topic}."]
    if r.random() < 0.2:
        requests.append("Write a poem.")
    return r.choice(requests), "\n".join(map(capitalized, lines))
