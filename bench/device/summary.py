"""Figures beside what was predicted, beside a baseline, and beside torch."""

import json
import pathlib
import statistics

HERE = pathlib.Path(__file__).resolve().parent
TABLES = {"steps": "requests", "prompt": "tokens"}


def predictions() -> dict:
    """What is expected of each figure."""
    return json.loads((HERE / "predictions.json").read_text())


def key(figure: dict) -> tuple[str, str, str]:
    """What a figure is of: kernel or table, and its size."""
    if "kernel" in figure:
        return (figure.get("shape", ""), figure["kernel"], figure.get("size", ""))
    table = figure.get("part", "")
    return (figure.get("shape", ""), table, str(figure.get(TABLES.get(table, ""), "")))


def wanted(of: dict) -> tuple[str, str, str]:
    """The same of a prediction."""
    return (of["shape"], of.get("kernel") or of["table"], of.get("size", ""))


def medians(lines: list[dict], arm: str, field: str) -> dict[tuple, float]:
    """The median of a field over all runs of an arm."""
    found: dict[tuple, list[float]] = {}
    for line in lines:
        if line.get("arm") == arm and isinstance(line.get(field), (int, float)):
            found.setdefault(key(line), []).append(line[field])
    return {what: statistics.median(values) for what, values in found.items()}


def verdict(expected: float, measured: float, share: bool = False) -> str:
    """How a time, or a share of what is possible, stands to its prediction. One that is missed by half ends a line of work."""
    if expected == 0:
        return "as predicted" if measured == 0 else "not as predicted"
    if measured <= 0:
        return "not as predicted"
    # Above 1 is worse.
    ratio = expected / measured if share else measured / expected
    if ratio < 0.8:
        return "better"
    if ratio <= 1.25:
        return "as predicted"
    return "missed by half" if ratio > 1.5 else "near"


def on_predicted_card(lines: list[dict]) -> bool:
    """Whether all figures are of the card that the predictions are for."""
    names = {line["name"] for line in lines if line.get("part") == "about" and "name" in line}
    return bool(names) and all(predictions()["card"] in name for name in names)


def table(rows: list[list[str]]) -> str:
    """Rows as columns of equal width; the first row names them."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return "\n".join("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)


def shown(number: float | None) -> str:
    """A number for people."""
    if number is None:
        return "-"
    return f"{number:.0f}" if abs(number) >= 1000 or number == int(number) else f"{number:.3g}"


def beside_predictions(lines: list[dict], arms: list[str]) -> str:
    """Every prediction, and what each arm measured."""
    rows = [["shape", "figure", "size", "unit", "predicted", "how", *arms, "verdict"]]
    judged = on_predicted_card(lines)
    for of in predictions()["figures"]:
        values = [medians(lines, arm, of["field"]).get(wanted(of)) for arm in arms]
        found = medians(lines, of["arm"], of["field"]).get(wanted(of)) if "arm" in of else values[-1]
        says = "not measured" if found is None else "another card"
        # Bits do not depend on the card.
        if found is not None and (judged or of["expected"] == 0):
            says = verdict(of["expected"], found, of["field"].startswith("of "))
        shape, figure, size = wanted(of)
        figure = f"{figure}, {of['arm']}" if "arm" in of else figure
        rows.append([shape, figure, size, of["field"], shown(of["expected"]), of["how"], *map(shown, values), says])
    return table(rows)


def beside_goals(lines: list[dict], arms: list[str]) -> str:
    """The shares that steps of work should reach, and those that each arm reached."""
    goals = predictions()["goals"]
    names = list(goals["measures"])
    rows = [["", *names]]
    for after in goals["after"]:
        cells = [after.get(name) for name in names]
        text = ["" if cell is None else "-".join(dict.fromkeys(f"{x:.2f}" for x in cell)) for cell in cells]
        rows.append([after["step"], *text])
    for arm in arms:
        of = [goals["measures"][name] for name in names]
        values = [medians(lines, arm, measure["field"]).get(wanted(measure)) for measure in of]
        rows.append([f"measured: {arm}", *(shown(value) for value in values)])
    return table(rows)


def beside_others(lines: list[dict], arms: list[str]) -> str:
    """Microseconds of the last arm by those of the others, where both have a figure."""
    last = medians(lines, arms[-1], "us") | medians(lines, arms[-1], "device us")
    rows = [["shape", "figure", "size", "beside", "its us", "us", "ratio"]]
    for arm in [*arms[:-1], "torch"]:
        other = medians(lines, arm, "us") | medians(lines, arm, "device us")
        for what in [what for what in last if what in other and other[what] > 0]:
            rows.append([*what, arm, shown(other[what]), shown(last[what]), f"{last[what] / other[what]:.2f}"])
    return table(rows) if len(rows) > 1 else "  nothing to compare with"


def text(lines: list[dict], arms: list[str]) -> str:
    """All of it."""
    about = [line for line in lines if line.get("part") == "about"]
    failed = [line for line in lines if "failed" in line]
    parts = [
        "About",
        *(f"  {name}: {value}" for line in about for name, value in line.items() if name not in ("part", "s")),
        "",
        "Beside a baseline, other options, and torch",
        beside_others(lines, arms),
        "",
        "Parts that did not end well" if failed else "Every part ended well",
        *(f"  {line['part']} ({line.get('shape', '-')}, {line.get('arm', '-')}): {line['failed']}" for line in failed),
        "",
        "Shares of what the device could do, after each step of work",
        beside_goals(lines, arms),
        "",
        # Last, so that the end of a cut output has it.
        "Predicted and measured",
        beside_predictions(lines, arms),
    ]
    return "\n".join(parts) + "\n"
