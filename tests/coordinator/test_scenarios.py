"""The stories in tests/scenarios, held against their recorded traces.

After a deliberate change: ``RECORD_SCENARIOS=1 pytest tests/coordinator/test_scenarios.py``, then read the diff.
"""

import os
import random
from pathlib import Path

import pytest

from bamboo_cli.coordinator import events as ev
from tests.coordinator.scenario import play, standing
from tests.coordinator.small_world import World

SCENARIOS = sorted((Path(__file__).parent.parent / "scenarios").glob("*.txt"))

every_scenario = pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)


@every_scenario
def test_the_trace_is_as_recorded(path: Path) -> None:
    recorded = path.read_text()
    played, _ = play(recorded)
    if os.environ.get("RECORD_SCENARIOS"):
        path.write_text(played)
        return
    assert played.splitlines() == recorded.splitlines()


@every_scenario
def test_the_stored_rows_are_all_that_counts(path: Path) -> None:
    """Another machine with the same rows before every event: the same trace."""

    def prepare(world: World) -> None:
        world.before_each = lambda event: world.restart(announced=False)

    played, _ = play(path.read_text(), prepare)
    assert played.splitlines() == path.read_text().splitlines()


@every_scenario
def test_hearing_everything_twice_changes_nothing(path: Path) -> None:
    def prepare(world: World) -> None:
        world.duplicate = True

    _, once = play(path.read_text())
    _, twice = play(path.read_text(), prepare)
    assert standing(twice) == standing(once)


@pytest.mark.parametrize("most", [12, pytest.param(10_000, marks=pytest.mark.soak)], ids=["some", "all"])
@every_scenario
def test_a_coordinator_killed_before_any_event_changes_nothing(path: Path, most: int) -> None:
    """Started anew, with the stored rows and all links down: the run ends as it would have. ``most``: of the events."""
    text = path.read_text()
    counter = Counter()
    _, undisturbed = play(text, counter.prepare)
    events = range(1, counter.num_events)
    for index in sorted(random.Random(text).sample(events, min(most, len(events)))):
        _, world = play(text, Counter(restart_at=index).prepare)
        assert outcome(world) == outcome(undisturbed), f"killed before event {index}"


class Counter:
    """Counts what is heard from others, and restarts the coordinator before one of them; all agents join again."""

    def __init__(self, restart_at: int = -1) -> None:
        self.num_events = 0
        self._restart_at = restart_at

    def prepare(self, world: World) -> None:
        def before_each(event: ev.Event) -> None:
            if isinstance(event, ev.Tick | ev.AgentBeat | ev.Started):
                return
            self.num_events += 1
            if self.num_events == self._restart_at:
                world.restart()
                for node in world.nodes.values():
                    world.join(node)

        world.before_each = before_each


def outcome(world: World) -> tuple[object, ...]:
    """What the user gets, and what was rented for it."""
    run, progress = world.machine.board.run, world.machine.board.progress
    nodes = tuple(world.nodes)
    if run is None or progress is None:
        return nodes
    return run.state, run.reason, progress.committed_step, progress.num_samples, run.weights_sha256, nodes
