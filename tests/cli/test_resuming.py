"""Which checkpoint `--resume` means, and what is refused. Checkpoints are markers over empty layer files."""

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
from bamboo_trainer import storage
from bamboo_trainer.control import LayerSaved
from bamboo_trainer.manifest import Manifest, layer_file, layer_url, make_manifest, write_manifest

from bamboo_cli import jobs, resuming
from bamboo_cli.config import JobConfig
from bamboo_cli.coordinator import events as ev
from bamboo_cli.coordinator.archive import origin_of
from bamboo_cli.errors import BambooError, StateError, UsageError
from bamboo_cli.job_file import load_job
from bamboo_cli.recipe_file import recipe_digest
from bamboo_cli.training import run_to_join
from tests.cli.stored import stored
from tests.coordinator.small_world import World


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BAMBOO_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def job(job_file: Path, tmp_path: Path) -> JobConfig:
    """Ten steps; its checkpoints go to ``kept``."""
    return load_job(job_file, (f"checkpoint.url={(tmp_path / 'kept').as_uri()}",))


def save(job: JobConfig, run_id: str, step: int, created_at: str = "2026-01-01") -> Manifest:
    url = f"{job.checkpoint.url}/{run_id}"
    storage.write_durably(layer_url(url, step, 0), [b""])
    empty = hashlib.sha256(b"").hexdigest()
    saved = LayerSaved(
        checkpoint_step=step,
        layer=0,
        name="all",
        file=layer_file(0),
        num_bytes=0,
        file_sha256=empty,
        parameters_sha256=empty,
    )
    origin = origin_of(jobs.run_spec(job, run_id, url, recipe_digest(job.recipe)))
    manifest = make_manifest(
        run_id=run_id, step=step, seed=job.seed, layers=[saved], created_at=created_at, origin=origin
    )
    write_manifest(url, manifest)
    return manifest


def test_of_a_run_the_newest_checkpoint_is_taken_and_of_latest_the_newest_run(job: JobConfig) -> None:
    """Given no state file at all: what is in the job's folder of checkpoints counts."""
    save(job, "tiny-aaaaaa-1", 3)
    save(job, "tiny-aaaaaa-1", 5)
    save(job, "tiny-bbbbbb-1", 2, created_at="2026-01-02")
    save(job, "other-cccccc-1", 8, created_at="2026-01-03")

    named, latest = (resuming.choose(job, "tiny", asked) for asked in ("tiny-aaaaaa-1", "latest"))

    assert (named.run_id, named.step, named.url) == ("tiny-aaaaaa-1", 5, f"{job.checkpoint.url}/tiny-aaaaaa-1")
    assert (latest.run_id, latest.step) == ("tiny-bbbbbb-1", 2)


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("seed=1", "seed was 0, not 1"),
        ("global_batch_size=4", "global_batch_size was 8, not 4"),
        ("microbatch_size=4", "microbatch_size was 2, not 4"),
        ("recipe_options.dropout=0.5", "recipe_options was {}, not {'dropout': 0.5}"),
        ("recipe=mlp", "its recipe was"),
        ("steps=6", "has done 6 steps, and the job asks for 6"),
    ],
)
def test_a_job_that_would_not_make_the_same_bits_is_refused(
    job: JobConfig, job_file: Path, setting: str, told: str
) -> None:
    manifest = save(job, "tiny-aaaaaa-1", 5)
    resuming.check(job, manifest)

    with pytest.raises(UsageError) as error:
        resuming.check(load_job(job_file, (setting,)), manifest)

    assert told in error.value.message


def test_a_recipe_that_was_changed_since_is_refused(job: JobConfig) -> None:
    manifest = save(job, "tiny-aaaaaa-1", 5)
    Path(job.recipe).write_text("from bamboo_trainer.models.gpt2 import recipe\n")

    with pytest.raises(UsageError, match=r"mine\.py has changed since"):
        resuming.check(job, manifest)
    with pytest.raises(UsageError, match="an older Bamboo"):
        resuming.check(job, replace(manifest, origin=None))


@pytest.mark.parametrize("asked", ["tiny-aaaaaa-1", "latest"])
def test_without_a_complete_checkpoint_there_is_nothing_to_go_on_from(job: JobConfig, asked: str) -> None:
    storage.write_durably(layer_url(f"{job.checkpoint.url}/tiny-aaaaaa-1", 3, 0), [b""])

    with pytest.raises(StateError, match="complete checkpoint"):
        resuming.choose(job, "tiny", asked)


def test_a_run_that_goes_on_is_not_gone_on_with(job_file: Path, tmp_path: Path, world: World) -> None:
    path, job = stored(world, tmp_path), load_job(job_file, ())

    with pytest.raises(BambooError, match="run tiny-1 goes on"):
        resuming.choose(job, "tiny", "tiny-1")
    assert run_to_join(path, job, "tiny-1") == "tiny-1"
    with pytest.raises(StateError, match="run tiny-1 of another job"):
        run_to_join(path, job, "tiny-0")


def test_a_run_whose_checkpoint_could_not_be_copied_fails_and_does_not_begin_anew(world: World) -> None:
    run = world.machine.board.run
    assert run is not None
    resumes = resuming.Resumes(run_id="r1", step=3, url="file:///r1")
    training = replace(run.spec.training, run_id="r2")
    world.handle(ev.RequestMade(request_id=2, request=ev.StopRun(run_id=run.run_id)))
    world.pump()
    world.handle(
        ev.RequestMade(request_id=3, request=ev.StartRun(spec=replace(run.spec, training=training, resumes=resumes)))
    )
    (asked,) = [instruction for instruction in world.asked if isinstance(instruction, ev.ListCheckpoints)]
    world.asked.clear()

    world.handle(ev.CompleteCheckpoints(run_id="r2", steps=(), not_copied="layer-0000 is corrupt"))

    assert asked.resumes == resumes
    failed = world.machine.board.run
    assert failed is not None
    assert (failed.run_id, failed.state, failed.detail) == ("r2", "failed", "layer-0000 is corrupt")
