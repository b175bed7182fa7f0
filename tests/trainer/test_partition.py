from itertools import combinations, pairwise

import pytest
from bamboo_trainer.partition import cut
from hypothesis import given
from hypothesis import strategies as st


def bounds(ranges):
    return [(r.start, r.stop) for r in ranges]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=8), st.data())
def test_no_cut_has_a_shorter_longest_stage(costs, data):
    num_stages = data.draw(st.integers(1, len(costs)))
    found = cut([c / 1000 for c in costs], num_stages)

    assert [layer for stage in found for layer in stage] == list(range(len(costs)))
    assert all(found)
    every = (pairwise((0, *inner, len(costs))) for inner in combinations(range(1, len(costs)), num_stages - 1))
    shortest = min(max(sum(costs[a:b]) for a, b in stages) for stages in every)
    assert max(sum(costs[x] for x in stage) for stage in found) == shortest


def test_the_rest_is_even_behind_one_long_layer():
    assert bounds(cut([10, 1, 1, 1, 1, 1, 1], 3)) == [(0, 1), (1, 4), (4, 7)]


def test_equal_layers_are_spread_evenly_with_the_fewest_in_front():
    assert bounds(cut([0.1] * 8, 3)) == [(0, 2), (2, 5), (5, 8)]
    assert bounds(cut([0.1] * 8, 4)) == [(0, 2), (2, 4), (4, 6), (6, 8)]


def test_layers_that_cost_nothing_still_fill_every_stage():
    assert bounds(cut([0.0, 0.0, 0.0], 2)) == [(0, 1), (1, 3)]


def test_memory_moves_the_cut():
    costs, sizes = [1, 1, 1, 1], [70, 10, 10, 10]
    assert bounds(cut(costs, 2)) == [(0, 2), (2, 4)]
    assert bounds(cut(costs, 2, layer_bytes=sizes, limit_bytes=75)) == [(0, 1), (1, 4)]
    with pytest.raises(ValueError, match="4 layers of 100 bytes do not fit into 2 stages of 60 bytes"):
        cut(costs, 2, layer_bytes=sizes, limit_bytes=60)


def test_more_stages_than_layers_are_refused():
    with pytest.raises(ValueError, match="2 layers cannot be cut into 3 stages"):
        cut([1, 1], 3)
