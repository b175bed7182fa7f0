"""Whoever looks on, or gives everything back, also looks after the coordinator: no command waits for a dead one."""

from pathlib import Path

from bamboo_cli.coordinator.lock import owner
from tests.cluster import Bamboo

SLOW = {"recipe_options": {"sleep_forward_s": 0.02, "sleep_backward_s": 0.02}, "stages": 2}


def _kill_coordinator(bamboo: Bamboo) -> None:
    pid = owner(bamboo.cluster_dir)
    (coordinator,) = [process for process in bamboo.processes() if process.pid == pid]
    coordinator.kill()


def test_a_run_starts_the_coordinator_again_that_dies_under_it(bamboo: Bamboo) -> None:
    command = bamboo.begin("run", bamboo.job(**SLOW), "--yes", "--json")
    bamboo.until(lambda: bamboo.committed_steps() > 2, "the training to be on")

    _kill_coordinator(bamboo)

    outcome = command.end()
    assert outcome.exit_code == 0, outcome.stderr
    assert outcome.summary["steps"] == 24
    assert outcome.summary["steps_rerun"] == 0
    assert "the coordinator had died; it was started again" in outcome.stderr


def test_a_run_whose_coordinator_cannot_live_ends_and_gives_everything_back(bamboo: Bamboo, tmp_path: Path) -> None:
    command = bamboo.begin("run", bamboo.job(**SLOW, steps=100000), "--yes", "--json")
    bamboo.until(lambda: bamboo.committed_steps() > 2, "the training to be on")
    broken = tmp_path / "broken"
    broken.write_bytes(b"this was a state file once")

    broken.replace(bamboo.cluster_dir / "state.db")
    (bamboo.cluster_dir / "state.db-wal").unlink()
    _kill_coordinator(bamboo)

    outcome = command.end()
    assert outcome.exit_code == 1
    assert "damaged" in outcome.stderr
    assert "Traceback" not in outcome.stderr
