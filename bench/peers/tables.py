"""Samples as Markdown: medians, extremes, and the ratio of Lockstep to the best peer."""

from statistics import median

Cell = tuple[str, int]
# Tokens/s by cell, engine and repetition; a repetition in which the engine failed is absent.
Rates = dict[Cell, dict[str, dict[int, float]]]
# Columns of Lockstep's own report.
LIMITS = ["of bandwidth", "of compute"]


def rates(samples: list[dict]) -> Rates:
    """Samples as written to JSON, by cell and engine; cells in the order of their first sample."""
    found: Rates = {}
    for sample in samples:
        cell = (sample["phase"], sample["size"])
        found.setdefault(cell, {}).setdefault(sample["engine"], {})[sample["repetition"]] = sample["rate"]
    return found


def best_peer(engines: dict[str, dict[int, float]], peers: list[str]) -> str | None:
    """The peer with the highest median."""
    here = [peer for peer in peers if engines.get(peer)]
    return max(here, key=lambda peer: median(engines[peer].values()), default=None)


def ratios(ours: dict[int, float], theirs: dict[int, float]) -> list[float]:
    """Ours over theirs in each repetition that has both."""
    return [rate / theirs[repetition] for repetition, rate in ours.items() if repetition in theirs]


def span(values: list[float], digits: int) -> str:
    """`median (least–most)`."""
    if not values:
        return "–"
    low, high = min(values), max(values)
    return f"{median(values):.{digits}f} ({low:.{digits}f}–{high:.{digits}f})"


def reached(samples: list[dict], engine: str | None, cell: Cell) -> list[str]:
    """Medians of the parts of the machine's limits that `lockstep bench offline` reports for a cell, as percentages."""
    here = [
        sample["raw"] for sample in samples if (sample["engine"], sample["phase"], sample["size"]) == (engine, *cell)
    ]
    parts = []
    for column in LIMITS:
        values = [raw[column] for raw in here if raw.get(column) is not None]
        parts.append(f"{median(values):.0%}" if values else "–")
    return parts


def class_table(name: str, engines: list[str], samples: list[dict]) -> str:
    """Cells of one class of weights, an engine a column, then Lockstep's paired ratios and parts of the limits."""
    found = rates(samples)
    present = [engine for engine in engines if any(engine in by for by in found.values())]
    if not present:
        return ""
    ours = next((engine for engine in present if engine.startswith("lockstep")), None)
    peers = [engine for engine in present if engine != ours]
    compared = peers if ours else []
    head = ["cell", *present, *(["best peer", "Lockstep / best"] if compared else [])]
    head += [f"Lockstep / {peer}" for peer in compared] if len(compared) > 1 else []
    head += [f"Lockstep {column}" for column in LIMITS] if ours else []
    lines = [f"### {name} weights", "", row(head), row(["---"] * len(head))]
    for (phase, size), by in found.items():
        if not any(engine in by for engine in present):
            continue
        label = f"{phase} {size}" if phase == "prefill" else f"{phase} b{size}"
        cells = [label, *(span(list(by.get(engine, {}).values()), 1) for engine in present)]
        if compared:
            best = best_peer(by, peers)
            cells += [best or "–", span(ratios(by.get(ours, {}), by[best]), 2) if best else "–"]
            if len(compared) > 1:
                cells += [span(ratios(by.get(ours, {}), by.get(peer, {})), 2) for peer in compared]
        cells += reached(samples, ours, (phase, size)) if ours else []
        lines.append(row(cells))
    return "\n".join([*lines, ""])


def row(cells: list[str]) -> str:
    """A line of a Markdown table."""
    return "| " + " | ".join(cells) + " |"
