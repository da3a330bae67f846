"""Small programs in Python, Rust and SQL."""

import random
from dataclasses import dataclass

from .records import fenced
from .words import VERBS, Turn, capitalized, commas

FIELDS = """
    count price total size width height weight score speed level index amount limit offset length depth rate cost tax
    value
""".split()
NOUNS = "user order item invoice product city book ticket sensor report account device message player task".split()
TYPES = [("i64", "int"), ("f64", "float"), ("String", "str"), ("bool", "bool")]  # Rust, Python
OPERATIONS = [("sum", "+"), ("difference", "-"), ("product", "*"), ("quotient", "/")]
COMPARISONS = {">": "greater than", "<": "less than", "=": "equal to"}


@dataclass
class Names:
    """What a program talks about: two fields, a noun, an operation, and a list of typed fields."""

    a: str
    b: str
    noun: str
    operation: str
    operator: str
    fields: list[str] = ()
    types: list[tuple[str, str]] = ()

    @property
    def type_name(self) -> str:
        return capitalized(self.noun)


def python_function(name: str, a: str, b: str, operation: str, operator: str) -> str:
    return f'def {name}({a}, {b}):\n    """Return the {operation} of {a} and {b}."""\n    return {a} {operator} {b}'


def python_file(r: random.Random) -> Turn:
    pairs = (r.sample(FIELDS, 2) for _ in range(r.randint(2, 4)))
    functions = [(f"{r.choice(VERBS)}_{a}", a, b, *r.choice(OPERATIONS)) for a, b in pairs]
    asked = "; ".join(f"{name} returns the {operation} of {a} and {b}" for name, a, b, operation, _ in functions)
    body = "\n\n".join(python_function(*function) for function in functions)
    return f"Write a Python file with these functions: {asked}.", fenced("python", body)


def operation_in_python(r: random.Random, n: Names) -> Turn:
    name = f"get_{n.operation}" if r.random() < 0.4 else f"{r.choice(VERBS)}_{n.a}"
    user = f"Write a Python function {name} that returns the {n.operation} of {n.a} and {n.b}."
    return user, fenced("python", python_function(name, n.a, n.b, n.operation, n.operator))


def operation_in_rust(r: random.Random, n: Names) -> Turn:
    name = f"{r.choice(VERBS)}_{n.a}"
    user = f"Write a Rust function {name} that returns the {n.operation} of {n.a} and {n.b}."
    body = (
        f"/// Returns the {n.operation} of {n.a} and {n.b}.\n"
        f"pub fn {name}({n.a}: f64, {n.b}: f64) -> f64 {{\n    {n.a} {n.operator} {n.b}\n}}"
    )
    return user, fenced("rust", body)


def rust_struct(_: random.Random, n: Names) -> Turn:
    typed = [f"{field}: {rust}" for field, (rust, _) in zip(n.fields, n.types)]
    body = f"#[derive(Debug, Clone)]\npub struct {n.type_name} {{\n" + "\n".join(f"    pub {t}," for t in typed) + "\n}"
    return f"Write a Rust struct {n.type_name} with fields {', '.join(typed)}.", fenced("rust", body)


def python_dataclass(_: random.Random, n: Names) -> Turn:
    typed = [f"{field}: {python}" for field, (_, python) in zip(n.fields, n.types)]
    body = f"from dataclasses import dataclass\n\n@dataclass\nclass {n.type_name}:\n" + "\n".join(
        f"    {t}" for t in typed
    )
    return f"Write a Python dataclass {n.type_name} with fields {', '.join(typed)}.", fenced("python", body)


def python_class(_: random.Random, n: Names) -> Turn:
    assignments = "\n".join(f"        self.{field} = {field}" for field in n.fields)
    body = f"class {n.type_name}:\n    def __init__(self, {commas(n.fields)}):\n{assignments}"
    return f"Write a Python class {n.type_name} with attributes {commas(n.fields)}.", fenced("python", body)


def sql_query(r: random.Random, n: Names) -> Turn:
    value = r.randint(1, 500)
    sign = r.choice([">", "<", "="])
    ordered = r.random() < 0.5
    user = (
        f"Write a SQL query that selects {commas(n.fields)} from {n.noun}s where {n.a} is {COMPARISONS[sign]} {value}"
    )
    body = f"SELECT {commas(n.fields)}\nFROM {n.noun}s\nWHERE {n.a} {sign} {value}"
    if ordered:
        return f"{user}, ordered by {n.b}.", fenced("sql", f"{body}\nORDER BY {n.b};")
    return f"{user}.", fenced("sql", f"{body};")


def sql_table(_: random.Random, n: Names) -> Turn:
    user = f"Write a SQL statement that creates a table {n.noun}s with integer columns {commas(n.fields)}."
    columns = ",\n".join(f"    {field} INTEGER NOT NULL" for field in n.fields)
    return user, fenced("sql", f"CREATE TABLE {n.noun}s (\n    id INTEGER PRIMARY KEY,\n{columns}\n);")


def python_loop(r: random.Random, n: Names) -> Turn:
    name = f"{r.choice(VERBS)}_{n.noun}s"
    user = f"Write a Python function {name} that loops over {n.noun}s and prints the {n.a} of each {n.noun}."
    body = f"def {name}({n.noun}s):\n    for {n.noun} in {n.noun}s:\n        print({n.noun}.{n.a})"
    return user, fenced("python", body)


def rust_test(r: random.Random, n: Names) -> Turn:
    name, value = f"{r.choice(VERBS)}_{n.noun}", r.randint(2, 99)
    user = f"Write a Rust test named {name} that checks that {n.a} equals {value}."
    body = f"#[test]\nfn {name}() {{\n    let {n.a} = {n.noun}::{n.a}();\n    assert_eq!({n.a}, {value});\n}}"
    return user, fenced("rust", body)


KINDS = [
    operation_in_python,
    operation_in_rust,
    rust_struct,
    python_dataclass,
    python_class,
    sql_query,
    sql_table,
    python_loop,
    rust_test,
]


def code(r: random.Random) -> Turn:
    if r.random() < 0.08:
        return python_file(r)
    kind = KINDS[r.randrange(len(KINDS))]
    names = Names(*r.sample(FIELDS, 2), r.choice(NOUNS), *r.choice(OPERATIONS))
    if kind not in (operation_in_python, operation_in_rust):
        names.fields = r.sample(FIELDS, r.randint(2, 4))
        names.types = [r.choice(TYPES) for _ in names.fields]
    return kind(r, names)
