"""A run's event files, as TensorBoard itself reads them, whatever happens to the run, the coordinator and the disk."""

import resource
import signal
from pathlib import Path

import pytest

from bamboo_cli.coordinator.events import StoryKind
from bamboo_cli.coordinator.settings import Resumes
from bamboo_cli.coordinator.states import RunState
from bamboo_cli.tracking import position
from bamboo_cli.tracking.following import Follower
from bamboo_cli.tracking.points import Curve
from bamboo_cli.tracking.tensorboard import TensorBoard
from tests.tracking.recorded import STEP_S, USD_PER_HOUR, Recorded
from tests.tracking.seen import seen_in, values

USD_PER_STEP = 2 * USD_PER_HOUR * STEP_S / 3600


def look(follower: Follower) -> None:
    """Of a coordinator that is then ended."""
    follower.attempt()
    follower.close()


@pytest.fixture
def run(tmp_path: Path) -> Recorded:
    return Recorded(tmp_path)


def test_a_run_opens_in_tensorboard_with_its_curves_its_job_and_its_story(run: Recorded) -> None:
    run.tell(StoryKind.RUN, "plan 1 from step 0", step=0)
    run.steps(0, 5)
    run.tell(StoryKind.PREEMPTION, "the cloud takes it", node_id="n2")
    run.steps(5, 8)
    run.end()
    look(run.follower())

    seen = seen_in(run.folder)
    assert [(at.step, at.value) for at in seen["train/loss"]] == [(s, pytest.approx(1 / (s + 1))) for s in range(8)]
    last = {tag: listed[-1].value for tag, listed in seen.items() if tag.startswith(("train", "speed", "c"))}
    assert last == pytest.approx(
        {
            "train/loss": 1 / 8,
            "train/gradient_norm": 0.5,
            "train/learning_rate": 1e-3,
            "speed/step_s": 2.0,
            "speed/samples_per_s": 4.0,
            "cost/usd": 8 * USD_PER_STEP,
            "cluster/nodes": 2,
            "cluster/pipelines": 1,
            "cluster/stages": 2,
        },
        rel=1e-3,
    )
    ((_, job),) = seen["job"]
    assert "run demo-1" in job and "    seed: 7" in job.splitlines()
    assert seen["story/run"] == [(0, "plan 1 from step 0")]
    assert [text for _, text in seen["story/preemption"]] == ["n2: the cloud takes it"]
    assert run.warnings == []


def test_a_coordinator_that_is_started_again_goes_on_without_holes_or_doubles(run: Recorded) -> None:
    for first in range(0, 12, 3):
        run.steps(first, first + 3)
        run.tell(StoryKind.LOSS, f"a loss after step {first + 2}")
        look(run.follower())
    run.end()
    look(run.follower())

    assert list(values(run.folder, "train/loss")) == list(range(12))
    assert [text for _, text in seen_in(run.folder)["story/loss"]] == [f"a loss after step {s}" for s in (2, 5, 8, 11)]


def test_one_that_is_killed_before_it_noted_what_it_had_told_tells_it_again_and_once_it_is_seen(run: Recorded) -> None:
    run.steps(0, 4)
    look(run.follower())
    noted = position.place(run.cluster_dir, "tensorboard", run.run_id)
    before = noted.read_bytes()
    run.tell(StoryKind.FAILOVER, "a shadow steps in", step=4)
    run.steps(4, 7)
    look(run.follower())
    noted.write_bytes(before)
    written = max(run.folder.iterdir())
    written.write_bytes(written.read_bytes()[:-11])  # in the middle of a record
    run.steps(7, 9)
    look(run.follower())

    assert list(values(run.folder, "train/loss")) == list(range(9))
    assert [text for _, text in seen_in(run.folder)["story/failover"]] == ["a shadow steps in"]
    assert len(seen_in(run.folder)["job"]) == 1


def test_steps_that_are_run_again_are_seen_as_they_were_committed_last(run: Recorded) -> None:
    follower = run.follower()
    run.steps(0, 9)
    follower.attempt()
    run.restore(5)
    follower.attempt()
    run.steps(5, 7, generation=2, scale=3.0)
    follower.attempt()
    assert list(values(run.folder, "train/loss")) == list(range(7)), "what was taken back is not seen"

    run.steps(7, 12, generation=2, scale=3.0)
    follower.attempt()
    follower.close()
    scale = {step: value * (step + 1) for step, value in values(run.folder, "train/loss").items()}
    assert scale == pytest.approx({step: 1.0 if step < 5 else 3.0 for step in range(12)})
    paid = values(run.folder, "cost/usd")
    assert paid[11] == pytest.approx(16 * USD_PER_STEP, rel=1e-3), "what is run again is paid again"


def test_a_run_that_is_resumed_goes_on_in_the_same_curve(run: Recorded, tmp_path: Path) -> None:
    run.steps(0, 8)
    run.end(RunState.STOPPED)
    look(run.follower())
    second = Recorded(tmp_path, "demo-2", resumes=Resumes(run_id="demo-1", step=4, url="memory://nowhere"))
    second.steps(5, 10, scale=1.0)
    second.end()
    look(second.follower())

    assert sorted(path.name for path in run.folder.parent.iterdir()) == ["demo-1"]
    assert list(values(run.folder, "train/loss")) == list(range(10))
    paid = values(run.folder, "cost/usd")
    assert paid[9] == pytest.approx((8 + 5) * USD_PER_STEP, rel=1e-3), "the dollars of both"
    third = Recorded(tmp_path, "demo-3", resumes=Resumes(run_id="demo-2", step=9, url="memory://nowhere"))
    third.steps(10, 11)
    look(third.follower())
    assert list(values(run.folder, "train/loss")) == list(range(11))


def test_a_disk_that_cannot_be_written_is_told_once_and_nothing_is_missing_afterwards(run: Recorded) -> None:
    in_the_way = run.cluster_dir / "tensorboard"
    in_the_way.write_text("not a folder")
    follower = run.follower()
    run.steps(0, 3)
    follower.attempt()
    run.steps(3, 6)
    follower.attempt()
    assert len(run.warnings) == 1
    assert run.warnings[0].startswith("tensorboard cannot be told (") and "training goes on" in run.warnings[0]

    in_the_way.unlink()
    follower.attempt()
    run.steps(6, 8)
    look(follower)
    assert list(values(run.folder, "train/loss")) == list(range(8))
    assert len(run.warnings) == 1


def test_a_file_that_takes_not_even_its_first_record_is_not_left(tmp_path: Path) -> None:
    """Else a night on a full disk leaves a thousand of them."""
    curve = Curve(name="demo-1", run_id="demo-1", job={}, job_text="", first_step=0, is_new=True)
    tracker = TensorBoard(tmp_path)
    limits, ignored = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, limits[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            tracker.begin(curve)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    tracker.close()

    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_steps_that_nobody_has_told_of_yet_are_waited_for(run: Recorded) -> None:
    follower = run.follower()
    run.steps(0, 3)
    run.steps(5, 7)
    run.untold((3, 5))
    follower.attempt()
    assert list(values(run.folder, "train/loss")) == [0, 1, 2]

    run.untold()
    run.steps(3, 5)
    look(follower)
    assert list(values(run.folder, "train/loss")) == list(range(7))


def test_steps_that_nobody_ever_tells_of_are_left_out(run: Recorded) -> None:
    run.steps(0, 3)
    run.steps(5, 7)
    run.untold((3, 5))
    run.end()
    look(run.follower())

    assert list(values(run.folder, "train/loss")) == [0, 1, 2, 5, 6]


def test_very_many_steps_are_told_in_pieces(run: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bamboo_cli.tracking.record.MOST", 7)
    run.steps(0, 30)
    run.end()
    look(run.follower())

    paid = values(run.folder, "cost/usd")
    assert list(paid) == list(range(30))
    assert paid[29] == pytest.approx(30 * USD_PER_STEP, rel=1e-3)
