"""Chrome trace events."""

import json
from itertools import pairwise

from bamboo_trainer.plan import WorkerId

from bamboo_cli.tracing.chrome import chrome_trace
from bamboo_cli.tracing.timeline import timeline
from tests.tracing.example import BEGAN_AT, CALM, FIRST, SECOND, STORY, TAKEN_OVER, page


def test_a_small_step_is_told_event_by_event() -> None:
    found = chrome_trace(timeline("r1", CALM, ()))

    assert found["otherData"] == {"run": "r1", "version": 1, "began_at": BEGAN_AT}
    slots = [(e["name"], e["pid"], e["tid"], e["ts"], e["dur"]) for e in found["traceEvents"] if e["ph"] == "X"]
    assert slots == [
        ("step 0", 1, 2, 0, 75_000),
        ("0F0", 1, 2, 0, 10_000),
        ("1FRC0", 1, 2, 10_000, 8_000),
        ("bubble", 1, 2, 18_000, 32_000),
        ("0B0", 1, 2, 50_000, 20_000),
        ("COMMIT", 1, 2, 70_000, 5_000),
        ("step 0", 2, 3, 0, 78_000),
        ("bubble", 2, 3, 0, 12_000),
        ("1F0", 2, 3, 12_000, 10_000),
        ("1B0", 2, 3, 22_000, 20_000),
        ("HELD", 2, 3, 42_000, 1_000),
        ("bubble", 2, 3, 43_000, 30_000),
        ("COMMIT", 2, 3, 73_000, 5_000),
        ("1B0 ← n2/1", 1, 4, 42_000, 3_000),
        ("HELD ← n2/1", 1, 5, 43_000, 12_000),
        ("0F0 ← n1/1", 2, 6, 10_000, 1_000),
        ("HELD ← n1/1", 2, 6, 72_000, 0),
    ]
    flows = [(e["ph"], e["name"], e["tid"], e["ts"]) for e in found["traceEvents"] if e["ph"] in "sf"]
    assert flows == [
        ("s", "1B0", 3, 41_999),
        ("f", "1B0", 2, 50_000),
        ("s", "0F0", 2, 9_999),
        ("f", "0F0", 3, 12_000),
    ]
    names = {e["tid"]: e["args"]["name"] for e in found["traceEvents"] if e["name"] == "thread_name"}
    assert names == {
        1: "story",
        2: "n1/1 computes",
        3: "n2/1 computes",
        4: "to n1/1",
        5: "to n1/1",
        6: "to n2/1",
    }
    processes = {e["pid"]: e["args"]["name"] for e in found["traceEvents"] if e["name"] == "process_name"}
    assert processes == {0: "run r1", 1: "n1", 2: "n2"}
    assert json.loads(json.dumps(found)) == found


def test_the_story_is_instants_for_all_and_for_the_node() -> None:
    found = chrome_trace(timeline("r1", TAKEN_OVER, STORY))

    instants = [(e["name"], e["s"], e["pid"], e["ts"]) for e in found["traceEvents"] if e["ph"] == "i"]
    assert instants == [("loss", "t", 0, 28_000), ("loss", "p", 2, 28_000), ("failover", "t", 0, 29_000)]


def test_no_time_is_below_zero_even_if_the_story_begins_first() -> None:
    early = STORY[1].__class__(
        **{name: getattr(STORY[1], name) for name in STORY[1].__slots__} | {"at": BEGAN_AT - 0.5}
    )

    found = chrome_trace(timeline("r1", CALM, (early,)))

    assert min(e["ts"] for e in found["traceEvents"] if "ts" in e) == 0
    assert found["otherData"]["began_at"] == BEGAN_AT - 0.5


def test_a_step_that_was_given_up_says_so() -> None:
    given_up = page(FIRST, ("0F0", 0, 10), committed=False)

    found = chrome_trace(timeline("r1", (given_up,), ()))

    assert [e["name"] for e in found["traceEvents"] if e.get("cat") == "step"] == ["step 0, given up"]


def test_transfers_that_overlap_lie_on_lanes_of_their_own() -> None:
    sender = page(FIRST, ("0F0", 0, 10), ("0F1", 10, 20), ("0F2", 20, 30))
    receiver = page(SECOND, ("1F0", 50, 60), arrivals=(("0F0", FIRST, 25), ("0F1", FIRST, 27), ("0F2", FIRST, 49)))

    found = chrome_trace(timeline("r1", (sender, receiver), ()))

    lanes: dict[int, list[tuple[int, int]]] = {}
    for each in found["traceEvents"]:
        if each.get("cat") == "transfer":
            lanes.setdefault(each["tid"], []).append((each["ts"], each["ts"] + each["dur"]))
    assert sorted(map(len, lanes.values())) == [1, 2]
    assert all(before[1] <= after[0] for spans in lanes.values() for before, after in pairwise(spans))


def test_a_clock_that_is_behind_bends_no_transfer_backwards() -> None:
    """The receiver's clock is 20 ms behind, so that the datum seems to come before it was made."""
    receiver = page(SECOND, ("1F0", 2, 12), arrivals=(("0F0", FIRST, 1),))

    found = chrome_trace(timeline("r1", (page(FIRST, ("0F0", 0, 10)), receiver), ()))

    assert all(e["dur"] >= 0 for e in found["traceEvents"] if e["ph"] == "X")


def test_two_workers_of_one_node_are_two_threads_of_one_process() -> None:
    pages = (page(FIRST, ("0F0", 0, 10)), page(WorkerId("n1/2"), ("0F0", 0, 10), step=1, began_at=BEGAN_AT + 1))

    found = chrome_trace(timeline("r1", pages, ()))

    steps = {(e["pid"], e["tid"]) for e in found["traceEvents"] if e.get("cat") == "step"}
    assert steps == {(1, 2), (1, 3)}
