"""On a device whose memory is not the host's: nothing is left behind in the wrong one, and every bit is the CPU's."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.device import cases

ROOT = Path(__file__).parents[2]


def on_other_device(*trainings: str) -> Any:
    """In a process of its own, since torch cannot forget a device."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.device.on_other", *trainings],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["a failover after redundant forwards", "help of the other pipeline"])
def test_whole_trainings_have_the_bits_of_the_cpu(name: str) -> None:
    assert on_other_device(name) == [cases.trained(cases.on_cpu, "undisturbed")]


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return on_other_device()


def test_a_layer_changes_hands_by_checkpoint_by_fetch_and_by_lesson(found: dict[str, Any]) -> None:
    saved, restored, source, learned, fetched = found["changed hands"]
    assert (restored, learned, fetched) == (saved, source, source)
    assert found["changed hands"] == cases.changed_hands(cases.on_cpu)


def test_layers_are_measured_there(found: dict[str, Any]) -> None:
    def without_kept(costs: list[list[int]]) -> list[list[int]]:  # views have storages of their own in Python
        return [[parameters, activation, optimizer] for parameters, activation, _, optimizer in costs]

    assert without_kept(found["measured"]) == without_kept(cases.measured(cases.on_cpu))


def test_what_was_sent_stays_as_it_was_however_late_its_bytes_are_taken(found: dict[str, Any]) -> None:
    assert found["poisoned"] is True, "until somebody waits"
    assert found["late bytes"] is True


def test_what_is_left_in_the_wrong_memory_is_told_with_the_layer(found: dict[str, Any]) -> None:
    told = found["mixed memories"]
    assert "layer block.0" in told and "other:0" in told and "cpu" in told
