"""Checks of one script: their list, their server, and the line that each prints."""

import argparse
import json
import urllib.request

CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


def arguments(description, add=None):
    """Reads the command line; `add` may add options of the script."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--base-url", default="http://127.0.0.1:8000")
    parser.add_argument("--api-key", default="none")
    # That of operators, which `all.sh` gives to every script.
    parser.add_argument("--admin-key", help=argparse.SUPPRESS)
    if add:
        add(parser)
    return parser.parse_args()


def run(title, *given):
    """Runs all checks with what is given, and returns the exit status."""
    failed = 0
    print(title)
    for function in CHECKS:
        try:
            function(*given)
            print(f"ok      {function.__name__}")
        except Exception as error:
            failed += 1
            # Tasks that run together wrap their errors.
            while isinstance(error, ExceptionGroup):
                error = error.exceptions[0]
            print(f"FAILED  {function.__name__}: {type(error).__name__}: {error}")
    print(f"{len(CHECKS) - failed} passed, {failed} failed")
    return 1 if failed else 0


class Root:
    """The server's routes for which no client has a call."""

    def __init__(self, url, key):
        self.url = url.rstrip("/")
        self.headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}

    def post(self, path, body):
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), self.headers
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def prompt(self, **chat):
        """Returns the text that the model reads of a chat."""
        tokens = self.post("/tokenize", chat)["tokens"]
        body = {"tokens": tokens, "skip_special_tokens": False}
        return self.post("/detokenize", body)["text"]


def holds(schema, value, place="arguments"):
    """`value` is as the schema says, for the few keywords of the tools in these scripts."""
    kinds = {"object": dict, "string": str, "integer": int, "array": list, "boolean": bool}
    known = {"type", "title", "description", "properties", "required", "additionalProperties",
             "enum", "minimum", "maximum", "maxLength", "default"}
    unknown = set(schema) - known
    assert not unknown, f"{place}: this check knows no {unknown}"
    if "type" in schema:
        kind = kinds[schema["type"]]
        assert isinstance(value, kind), f"{place}: {value!r} is no {schema['type']}"
    assert "enum" not in schema or value in schema["enum"], f"{place}: {value!r}"
    if isinstance(value, int):
        assert schema.get("minimum", value) <= value <= schema.get("maximum", value), place
    if isinstance(value, str):
        assert len(value) <= schema.get("maxLength", len(value)), f"{place}: {value!r}"
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        missing = set(schema.get("required", [])) - set(value)
        assert not missing, f"{place}: {missing} are missing"
        if schema.get("additionalProperties") is False:
            assert set(value) <= set(properties), f"{place}: {set(value) - set(properties)}"
        for name, inner in value.items():
            holds(properties.get(name, {}), inner, f"{place}.{name}")
