"""Trackers in processes of their own: the real packages, without a network; and processes that fail."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bamboo_cli.coordinator.events import StoryKind
from bamboo_cli.coordinator.settings import TrackerWish
from bamboo_cli.errors import BambooError
from bamboo_cli.job_file import load_job
from bamboo_cli.jobs import trackers
from bamboo_cli.tracker_check import check_trackers
from bamboo_cli.tracking import outside
from tests.tracking.recorded import Recorded
from tests.tracking.test_tensorboard import look

BLOCK_BYTES, WHOLE, LAST = 1 << 15, 1, 4
JOB = "name: demo\nsteps: 3\nglobal_batch_size: 8\nmicrobatch_size: 2\n"


@pytest.fixture
def run(tmp_path: Path) -> Recorded:
    return Recorded(tmp_path)


def two_lives(run: Recorded, wish: TrackerWish) -> None:
    """A restore in the first, which is told of nothing twice; the second tells the end."""
    follower = run.follower(wish)
    run.steps(0, 4)
    run.tell(StoryKind.PREEMPTION, "the cloud takes it", node_id="n2")
    look(follower)
    run.restore(2)
    run.steps(2, 6, generation=2)
    run.end()
    look(run.follower(wish))
    assert run.warnings == []


@pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning")  # MLflow's own queries
def test_mlflow_has_each_step_once_the_job_and_the_story(run: Recorded) -> None:
    pytest.importorskip("mlflow", reason="mlflow is not installed: pip install 'bamboo-train[mlflow]'")
    from mlflow import MlflowClient

    two_lives(run, TrackerWish(kind="mlflow", options={"experiment": "demo"}))

    client = MlflowClient(tracking_uri=f"sqlite:///{run.cluster_dir}/tracking/mlflow.db")
    experiment = client.get_experiment_by_name("demo")
    assert experiment is not None
    (found,) = client.search_runs([experiment.experiment_id])
    losses = {metric.step: metric.value for metric in client.get_metric_history(found.info.run_id, "train/loss")}
    assert losses == pytest.approx({step: 1 / (step + 1) for step in range(6)})
    assert len(client.get_metric_history(found.info.run_id, "cost/usd")) == 6
    assert (found.info.status, found.info.run_name) == ("FINISHED", "demo-1")
    assert found.data.params["checkpoint.keep"] == "3"
    assert found.data.tags["bamboo.story.preemption"].endswith("n2: the cloud takes it")


def test_wandb_has_each_step_once_the_job_and_the_story_in_its_offline_files(run: Recorded) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed: pip install 'bamboo-train[wandb]'")
    from wandb.proto import wandb_internal_pb2

    two_lives(run, TrackerWish(kind="wandb", options={"project": "demo", "mode": "offline"}))

    history: list[dict[str, str]] = []
    configs: list[str] = []
    for path in sorted(run.cluster_dir.glob("tracking/wandb/offline-run-*/*.wandb")):
        for data in logged(path.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                history.append({item.key or ".".join(item.nested_key): item.value_json for item in items})
            if record.WhichOneof("record_type") == "run":
                assert record.run.run_id == "demo-1"
                configs += [item.value_json for item in record.run.config.update if item.key == "checkpoint"]
    losses = {int(row["_step"]): json.loads(row["train/loss"]) for row in history if "train/loss" in row}
    assert losses == pytest.approx({step: 1 / (step + 1) for step in range(6)})
    assert len([row for row in history if "train/loss" in row]) == 6
    assert any("n2: the cloud takes it" in row.get("story", "") for row in history)
    assert json.loads(configs[0]) == {"keep": 3}


def logged(file: bytes) -> Iterator[bytes]:
    """Records of a log as LevelDB has it: after seven bytes, blocks of 32 KiB, of pieces with a header of seven."""
    position, record = 7, b""
    while position + 7 <= len(file):
        if (left := -position % BLOCK_BYTES) < 7:
            position += left
            continue
        length, kind = int.from_bytes(file[position + 4 : position + 6], "little"), file[position + 6]
        record += file[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (WHOLE, LAST):
            yield record
            record = b""


def test_a_tracker_whose_process_dies_is_told_once(run: Recorded) -> None:
    follower = run.follower(TrackerWish(kind="nothing"))
    run.steps(0, 2)
    follower.attempt()
    look(follower)

    assert len(run.warnings) == 1
    assert "nothing cannot be told (its process ended; its log is" in run.warnings[0]
    assert "No module named" in (run.cluster_dir / "tracking" / "nothing.log").read_text()


@pytest.mark.parametrize("num_letters", [10, 200_000])
@pytest.mark.timeout(20)
def test_a_tracker_that_hangs_is_told_once_and_ended(
    run: Recorded, monkeypatch: pytest.MonkeyPatch, num_letters: int
) -> None:
    """Whether or not the pipe to it takes all that it is to be told."""
    frozen = run.cluster_dir / "frozen"
    frozen.write_text("#!/bin/sh\nexec sleep 1000\n")
    frozen.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(frozen))
    monkeypatch.setattr(outside, "ANSWER_S", 0.1)
    follower = run.follower(TrackerWish(kind="wandb", options={"project": "x" * num_letters}))
    run.steps(0, 2)

    follower.attempt()
    look(follower)

    assert len(run.warnings) == 1
    assert "wandb cannot be told (it did not answer within 0 s; its log is" in run.warnings[0]


def test_a_tracker_that_is_named_and_not_installed_is_told_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(JOB + "trackers: [tensorboard, wandb]\nwandb: {mode: offline}\n")
    monkeypatch.setitem(sys.modules, "wandb", None)  # not to be imported

    job = load_job(path)
    with pytest.raises(BambooError, match="wandb is named in the job, but not installed; nothing was rented") as told:
        check_trackers(job)

    assert "pip install 'bamboo-train[wandb]'" in told.value.next_step
    assert trackers(job)[1] == TrackerWish(kind="wandb", options={"project": "demo", "mode": "offline"})


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("trackers: [wandb, wandb]\n", "wandb is there twice"),
        ("mlflow: {experiment: x}\n", "is about mlflow, which is not among the `trackers`"),
        ("trackers: [tensorbord]\n", "tensorboard"),
    ],
)
def test_mistakes_about_trackers_are_told_with_their_line(tmp_path: Path, said: str, told: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(JOB + said)

    with pytest.raises(BambooError) as refused:
        load_job(path)

    assert told in refused.value.message and f"{path}:5" in refused.value.message
