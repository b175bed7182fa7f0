"""What `bamboo plan` shows: whole where nobody wraps lines, and readable on a narrow terminal."""

import re

import pytest

from bamboo_cli.config import JobConfig
from bamboo_cli.preview import preview
from bamboo_cli.views.plan import plan
from tests.cli.test_views import drawn

WIDE = JobConfig(name="wide", steps=1, global_batch_size=64, microbatch_size=1, stages=4)
TWO = JobConfig(name="two", steps=1, global_batch_size=16, microbatch_size=1, pipelines=2, stages=3, nodes=7)


def test_the_grid_of_a_plan_is_cut_off_and_never_wrapped() -> None:
    text = drawn(plan(preview(WIDE)), width=60)

    grid = [line for line in text.splitlines() if "F0" in line]
    assert len(grid) == 4
    assert all(len(line) <= 60 and line.endswith("…") for line in grid)


@pytest.mark.parametrize("width", [60, 80])
def test_on_a_narrow_terminal_tables_lose_columns_and_no_row_is_folded(width: int) -> None:
    narrow = drawn(plan(preview(TWO)), width).splitlines()

    (title,) = (number for number, line in enumerate(narrow) if line.startswith("protection "))
    table = narrow[title : narrow.index("", title)]
    columns = re.split(r"\s{2,}", table[0])
    rows = [re.split(r"\s{2,}", line.strip()) for line in table if line.startswith("  ")]
    assert max(map(len, narrow)) <= width
    assert {"step time", "memory", "fatal once in"} <= set(columns) and ("after a loss" in columns) is (width == 80)
    assert {"off", "mirror, level 2", "reroute", "full, level 2"} <= {row[0] for row in rows}
    assert {len(row) for row in rows} == {len(columns)}


def test_protections_stand_below_what_a_loss_comes_to_under_them() -> None:
    found = preview(TWO)

    lines = drawn(plan(found), 80).splitlines()

    for price in found.protections:
        name = f"  {price.mode}, level 2" if price.level == 2 else f"  {price.mode} "
        (number,) = (number for number, line in enumerate(lines) if line.startswith(name))
        assert next(line for line in reversed(lines[:number]) if not line.startswith("  ")) == price.survived_by


def test_long_sentences_go_on_beside_their_label() -> None:
    lines = drawn(plan(preview(TWO)), 60).splitlines()

    (begin,) = (number for number, line in enumerate(lines) if line.startswith("losses:  "))
    assert lines[begin + 1].startswith(" " * 9) and lines[begin + 1][9] != " "
