"""The table of values in the chart's README, written from schema and defaults.

After a change, `UPDATE_EXPECT=1 deploy/helm/check/run` writes it anew.
"""

from __future__ import annotations

import json

import chart

START = "<!-- values: written by the check -->\n"
END = "<!-- end of values -->\n"


def rows(schema: dict, defaults: dict, above: str = "") -> list[str]:
    """A row for each value, those of objects with known fields one by one."""
    lines = []
    for name, property in schema["properties"].items():
        key = f"{above}{name}"
        default = defaults.get(name) if isinstance(defaults, dict) else None
        if key != "config" and "properties" in property and name not in ("resources",):
            lines.append(f"| **`{key}`** | | {property['description']} |")
            lines += rows(property, default, f"{key}.")
            continue
        shown = "" if default is None else f"`{json.dumps(default, ensure_ascii=False)}`"
        meaning = property["description"]
        if "enum" in property:
            meaning += ": " + ", ".join(f"`{value}`" for value in property["enum"])
        lines.append(f"| `{key}` | {shown} | {meaning} |".replace("| |", "| |"))
    return lines


def test_the_table_is_that_of_the_schema():
    loaded = chart.loaded()
    table = ["| Value | Default | Meaning |", "|---|---|---|"]
    table += rows(loaded.schema, loaded.values)
    assert not any("\n" in row for row in table)
    path = chart.CHART / "README.md"
    text = path.read_text()
    before, rest = text.split(START)
    _, after = rest.split(END)
    wanted = f"{before}{START}\n" + "\n".join(table) + f"\n\n{END}{after}"
    if chart.updating():
        path.write_text(wanted)
    assert text == wanted or chart.updating(), "UPDATE_EXPECT=1 deploy/helm/check/run writes it anew"


def test_each_default_is_known():
    """Every default has its place in the schema, and a description there."""

    def look(schema: dict, defaults: dict, above: str) -> None:
        for name, default in defaults.items():
            property = schema["properties"].get(name)
            assert property and property.get("description"), f"{above}{name}"
            if isinstance(default, dict) and property.get("additionalProperties") is False:
                look(property, default, f"{above}{name}.")

    look(chart.loaded().schema, chart.loaded().values, "")
