"""Word stock of the synthetic data, and small helpers that put words into sentences.

The order of every list is part of the data: a seeded generator draws by position.
"""

import random
from collections.abc import Iterable

ANIMALS = """
    ant bear beaver camel cat cow crab crane deer dog dolphin donkey duck eagle fox frog goat goose hare hawk hen
    horse lamb lion lizard mole mouse otter owl panda parrot pig rabbit raven seal sheep snail spider swan tiger
    toad turtle whale wolf zebra
""".split()

FRUITS = """
    apple apricot banana cherry date fig grape kiwi lemon lime mango melon orange papaya peach pear plum quince
    raspberry strawberry
""".split()

VEGETABLES = """
    bean beet cabbage carrot celery corn cucumber garlic leek lettuce onion pea pepper potato pumpkin radish spinach
    squash tomato turnip
""".split()

COLORS = """
    amber beige black blue brown coral cream gold gray green indigo ivory orange pink purple red silver teal violet
    white yellow
""".split()

TOOLS = """
    axe brush chisel clamp drill file hammer hoe knife ladder mallet needle pliers rake ruler saw scissors shovel
    spanner trowel wrench
""".split()

OBJECTS = """
    bag ball basket bell blanket book boot bottle bowl box bucket button candle chair clock coat coin compass cup
    desk door drum feather flag flute glove hat jar kettle key lamp lantern letter map mirror mug paddle pencil
    pillow plate pot ribbon ring rope scarf shelf shoe spoon stone stool table teapot tent torch towel umbrella
    violin wagon wheel whistle
""".split()

PLACES = """
    barn bay bridge cabin castle cave cliff desert farm field forest garden harbor hill island lake lighthouse
    market meadow mill mountain orchard park path river school shore station tower town tunnel valley village well
""".split()

MATERIALS = """
    brass clay copper cotton glass iron leather linen marble oak paper pine silk steel wool
""".split()

ADJECTIVES = """
    ancient bold brave bright calm clever cold cozy curious dusty eager early faint gentle giant golden happy heavy
    hidden honest humble kind lazy light little lively lonely lucky narrow noisy old patient plain polite proud
    quick quiet rough round rusty shiny shy silent simple sleepy slow small smart smooth soft steady strong sturdy
    sweet tall tiny warm wide wild wise young
""".split()

VERBS = """
    build carry catch clean climb count cross dance draw find fix follow gather guard help hide hold jump learn lift
    listen mend open paint plant play polish pull push read rest sail search share sing sleep start stop sweep swim
    teach trade visit wait walk wash watch wave write
""".split()

MISCELLANEOUS = """
    answer autumn breeze cloud corner dawn dream dust evening fire flower fog frost hour leaf light minute moment
    moon morning music night noon number ocean picture plan question rain sand season secret shadow sky snow song
    spring star storm story summer sun thunder tide travel wave weather wind winter wonder word world
""".split()

FIRST_NAMES = """
    Ada Alan Amy Anna Ben Bella Carl Clara Dan Dora Eli Emma Finn Flora Gail Gus Hana Henry Ida Ivan Jack Jane Karl
    Kate Leo Lena Lucy Mara Max Mia Nina Noah Olga Omar Otto Paul Pia Quinn Rosa Ruth Sam Sara Theo Tina Uma Vera
    Victor Wendy Will Yara Zoe
""".split()

LAST_NAMES = """
    Archer Baker Bell Brook Carter Cole Cook Cross Dale Dean Fisher Ford Fox Grant Gray Hall Hart Hill Hunt Kent
    King Lake Lane Marsh Mason Miller Moss Nash North Page Park Parker Penn Pike Pond Porter Price Reed Rivers Rose
    Shaw Smith Snow Stone Swift Turner Vale Ward Webb West Wood York
""".split()

JOBS = """
    artist baker builder carpenter chef clerk dentist doctor driver editor engineer farmer gardener guard judge
    librarian mechanic miner nurse painter pilot plumber sailor singer tailor teacher waiter weaver welder writer
""".split()

WORDS = sorted(
    set(ANIMALS + FRUITS + VEGETABLES + COLORS + TOOLS + OBJECTS)
    | set(PLACES + MATERIALS + ADJECTIVES + VERBS + MISCELLANEOUS)
)
SORTABLE = sorted(set(ANIMALS + FRUITS + VEGETABLES + TOOLS + OBJECTS))
CATEGORIES = {
    "animals": ANIMALS,
    "fruits": FRUITS,
    "vegetables": VEGETABLES,
    "colors": COLORS,
    "tools": TOOLS,
    "household objects": OBJECTS,
    "materials": MATERIALS,
    "jobs": JOBS,
}
NUMBERS = "zero one two three four five six seven eight nine ten eleven twelve".split()
IRREGULAR_PLURALS = {
    "mouse": "mice",
    "goose": "geese",
    "deer": "deer",
    "sheep": "sheep",
    "fox": "foxes",
    "ox": "oxen",
    "wolf": "wolves",
    "donkey": "donkeys",
}

Turn = tuple[str, str]
"""A user's message and the assistant's answer."""


def full_name(r: random.Random) -> str:
    return r.choice(FIRST_NAMES) + " " + r.choice(LAST_NAMES)


def an(word: str) -> str:
    """The word with its indefinite article."""
    return ("an " if word[0] in "aeiou" or word in ("honest", "hour") else "a ") + word


def plural(word: str) -> str:
    return IRREGULAR_PLURALS.get(word, word + "s")


def capitalized(text: str) -> str:
    return text[0].upper() + text[1:]


def commas(items: Iterable) -> str:
    return ", ".join(map(str, items))


def enumeration(items: list[str]) -> str:
    """a, b and c"""
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1]
