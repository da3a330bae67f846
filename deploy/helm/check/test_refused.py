"""Sets of values that must not get as far as a cluster."""

from __future__ import annotations

import chart
import pytest

SETS = chart.sets("refused")
MARK = "# refused: "


def test_there_are_sets():
    assert len(SETS) >= 15


@pytest.mark.parametrize("path", SETS, ids=lambda path: path.stem)
def test_a_wrong_set_is_refused_with_its_reason(path):
    first = path.read_text().splitlines()[0]
    assert first.startswith(MARK), f"the first line says what with: {MARK}…"
    with pytest.raises(chart.SetError) as error:
        chart.render(chart.read(path))
    assert first.removeprefix(MARK) in str(error.value)


def test_lists_of_keys_agree():
    """Every value has a place in the schema, and no key of `config` is the chart's own."""
    schema = chart.loaded().schema["properties"]
    assert chart.loaded().values.keys() <= schema.keys()
    for name in ("nnodes", "api-key", "dist-secret"):
        assert name in schema["config"]["properties"], "a real option, refused by the chart"
