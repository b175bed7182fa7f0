"""Numbers as bars."""

import math

import pytest

from bamboo_cli.views.sparkline import sparkline


def test_the_least_is_the_lowest_bar_and_the_greatest_the_highest() -> None:
    assert sparkline([1.0, 2.0, 3.0, 8.0], 10) == "▁▂▃█"
    assert sparkline([6.0, 8.0], 10, from_zero=True) == "▇█"


def test_more_numbers_than_bars_are_the_means_of_neighbours() -> None:
    assert sparkline([0.0, 0.0, 4.0, 4.0, 8.0, 8.0], 3) == "▁▅█"
    assert len(sparkline([float(i) for i in range(1000)], 17)) == 17


def test_what_is_no_number_is_a_cross_and_what_is_unknown_a_gap() -> None:
    assert sparkline([1.0, math.nan, None, 2.0], 4) == "▁× █"
    assert sparkline([1.0, 1.0, 1.0, math.inf], 2) == "▅×", "not hidden in a mean"
    assert sparkline([math.nan, None], 4) == "× "


@pytest.mark.parametrize("values", [[3.0], [3.0, 3.0, 3.0]])
def test_what_never_changes_is_flat(values: list[float]) -> None:
    assert set(sparkline(values, 5)) == {"▅"}


def test_there_may_be_nothing_to_show_and_no_room() -> None:
    assert sparkline([], 5) == "" and sparkline([1.0], 0) == "" and sparkline([1.0], -3) == ""
