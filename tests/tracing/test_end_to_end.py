"""A run that loses a node, looked at with `bamboo trace` while it is on and after it."""

import json
from collections import defaultdict
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.cluster import NAME, WITHOUT_REPLACEMENT, Bamboo

pytestmark = pytest.mark.timeout(300)

KILLED_IN = 6
DRILL = {"drill": [{"step": KILLED_IN, "stage": 1, "action": "1B1"}], "local": WITHOUT_REPLACEMENT}

Events = list[dict[str, Any]]


def trace(bamboo: Bamboo, *arguments: str) -> Events:
    done = bamboo.call("trace", *arguments, "--output", "trace.json")
    assert done.exit_code == 0, done.stderr
    assert done.stdout == "trace.json\n"
    found: Events = json.loads((bamboo.folder / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    return found


def slots(events: Events, category: str | None = None) -> Events:
    """Of the threads that compute."""
    mine = [e for e in events if e["ph"] == "X" and e["cat"] not in ("step", "transfer")]
    return [e for e in mine if category in (None, e["cat"])]


def test_a_trace_shows_a_takeover_while_the_run_is_on_and_after_it(bamboo: Bamboo) -> None:
    command = bamboo.begin("run", bamboo.paced(**DRILL), "--yes", "--json")
    bamboo.until(lambda: bamboo.committed_steps() > KILLED_IN + 3, "steps after the loss")

    while_on = trace(bamboo)

    assert command.is_on()
    assert_sound(while_on)
    assert_takeover(while_on)

    picture = bamboo.call("trace", "--svg", "--output", "step.svg")
    assert picture.exit_code == 0, picture.stderr
    drawn = ElementTree.parse(bamboo.folder / "step.svg").getroot()
    assert any(f"step {KILLED_IN} under" in (text.text or "") for text in drawn.iter())
    assert any(element.attrib.get("fill") == "url(#hatched)" for element in drawn.iter())
    assert any(element.attrib.get("class") == "slot over" for element in drawn.iter())

    bamboo.open_gate()
    summary = bamboo.finish(command)
    assert (summary["failovers"], summary["steps_rerun"]) == (1, 0)

    afterwards = trace(bamboo, summary["run_id"])
    assert_sound(afterwards)
    assert_takeover(afterwards)
    around = trace(bamboo, "--step", str(KILLED_IN), "--cluster", NAME)
    assert_sound(around)
    assert {e["args"]["step"] for e in around if e.get("cat") == "step"} == {KILLED_IN - 1, KILLED_IN, KILLED_IN + 1}

    sampled = {e["args"]["step"] for e in afterwards if e.get("cat") == "step"}
    assert {0, 1, 2, KILLED_IN - 1, KILLED_IN, 50, 100, 150} <= sampled
    assert 40 not in sampled
    refused = bamboo.call("trace", "--step", "40")
    assert refused.exit_code == 2
    assert "step 40 was not recorded" in refused.stderr


def assert_sound(events: Events) -> None:
    """Each slot inside a step of its worker, none of them over another; arrows have two ends."""
    steps, inside = defaultdict(list), defaultdict(list)
    for event in events:
        if event.get("cat") == "step":
            steps[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for slot in slots(events):
        inside[slot["pid"], slot["tid"]].append((slot["ts"], slot["ts"] + slot["dur"]))
    assert steps.keys() == inside.keys() and steps
    for thread, spans in inside.items():
        assert all(any(start <= s and e <= end for start, end in steps[thread]) for s, e in spans)
        assert all(before[1] <= after[0] for before, after in pairwise(sorted(spans)))
        assert all(before[1] <= after[0] for before, after in pairwise(sorted(steps[thread])))
    ends = [sorted(e["id"] for e in events if e["ph"] == end) for end in "sf"]
    assert ends[0] == ends[1] != []


def assert_takeover(events: Events) -> None:
    """After the failover, the shadow does the rest of the lost stage beside its own; others had told it of data."""
    failovers = {(e["pid"], e["tid"]): e["ts"] for e in slots(events, "plan") if e["name"].startswith("FAILOVER")}
    assert len(failovers) == 2, "both survivors adopt the plan"
    done_after = defaultdict(set)
    for step in (e for e in events if e.get("cat") == "step" and e["args"]["step"] == KILLED_IN):
        thread = step["pid"], step["tid"]
        for slot in slots(events, "backward"):
            end = step["ts"] + step["dur"]
            if (slot["pid"], slot["tid"]) == thread and failovers[thread] <= slot["ts"] <= end:
                done_after[thread].add(slot["name"][0])
    assert {"0", "1"} in done_after.values()
    assert any("1FRC" in e["name"] for e in slots(events, "redundant"))
    assert any(e.get("cat") == "transfer" for e in events)
    instants = {e["name"] for e in events if e["ph"] == "i"}
    assert {"loss", "failover"} <= instants
