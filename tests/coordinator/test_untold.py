"""Steps that nobody has told of, against a plain set of them."""

from hypothesis import given
from hypothesis import strategies as st

from bamboo_cli.coordinator import untold
from bamboo_cli.coordinator.untold import Untold

steps = st.integers(0, 30)
deeds = st.lists(st.tuples(st.sampled_from(["commit", "tell", "go back"]), steps, steps), max_size=30)


def flat(ranges: Untold) -> set[int]:
    return {step for first, end in ranges for step in range(first, end)}


@given(deeds)
def test_ranges_are_the_set_that_they_stand_for(story: list[tuple[str, int, int]]) -> None:
    ranges: Untold = ()
    wanted: set[int] = set()
    committed = -1
    for deed, a, b in story:
        if deed == "commit":
            ranges, new = (
                untold.added(ranges, committed + 1, committed + 1 + a),
                range(committed + 1, committed + 1 + a),
            )
            wanted |= set(new)
            committed += a + b % 3
        elif deed == "tell":
            ranges = untold.told(ranges, a)
            wanted.discard(a)
        else:
            committed = min(committed, a)
            ranges = untold.up_to(ranges, committed)
            wanted = {step for step in wanted if step <= committed}
        assert flat(ranges) == wanted
        assert all(untold.holds(ranges, step) == (step in wanted) for step in range(-1, 40))
        edges = [edge for pair in ranges for edge in pair]
        assert edges == sorted(edges) and all(first < end for first, end in ranges)
