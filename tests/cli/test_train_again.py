"""`bamboo train` of a job whose run goes on already, as after Ctrl-C."""

import subprocess
import sys
from pathlib import Path

import pytest

from bamboo_cli import jobs
from bamboo_cli.coordinator import events as ev
from bamboo_cli.coordinator import journal, store
from bamboo_cli.coordinator.settings import ClusterConfig
from bamboo_cli.errors import StateError
from bamboo_cli.job_file import load_job
from bamboo_cli.recipe_file import recipe_digest
from bamboo_cli.training import run_to_join, tell_what_stays
from tests.coordinator.small_world import World

JOB = "name: tiny\nsteps: 10\nglobal_batch_size: 8\nmicrobatch_size: 2\nrecipe: mine.py\ndrill: [{step: 3, stage: 1}]\n"


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text("from bamboo_trainer.models.mlp import recipe\n")
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    return path


@pytest.fixture
def world(job_file: Path) -> World:
    """A coordinator's machine that has the run of that job under way."""
    world = World(ClusterConfig(cluster_id="c", num_nodes=2, zones=("a",)))
    job = load_job(job_file, ())
    spec = jobs.run_spec(job, "tiny-1", "file:///checkpoints/tiny-1", recipe_digest(job.recipe))
    world.handle(ev.Started())
    world.handle(ev.RequestMade(request_id=1, request=ev.StartRun(spec=spec)))
    world.pump(training=False)
    assert world.step()
    return world


def stored(world: World, home: Path) -> Path:
    """The state file of its cluster."""
    cluster_dir = home / "clusters" / "tiny"
    store.create_cluster(cluster_dir, name="tiny", cloud="local", job_text="", job={}, wanted_nodes=2)
    path = store.state_path(cluster_dir)
    engine = store.open_for_writing(path)
    with store.writing(engine) as connection:
        rows = world.machine.dump()
        del rows["pulse"]  # signs of life are never stored
        for name, body in rows.items():
            journal.put_row(connection, name, body)
    engine.dispose()
    return path


def test_the_run_of_the_same_job_is_looked_on_at(job_file: Path, tmp_path: Path, world: World) -> None:
    path = stored(world, tmp_path)

    assert run_to_join(path, load_job(job_file, ())) == "tiny-1"
    assert run_to_join(path, load_job(job_file, ("seed=0",))) == "tiny-1", "said or not, it is the same"


def test_a_run_of_other_settings_is_refused_before_the_recipe_is_tried(
    job_file: Path, tmp_path: Path, world: World
) -> None:
    stored(world, tmp_path)

    done = subprocess.run(
        [sys.executable, "-m", "bamboo_cli.main", "train", str(job_file), "--set", "seed=1"],
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
        env={"BAMBOO_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )

    assert done.returncode == 1
    assert (
        "error: run tiny-1 of another job, of other settings or of another recipe goes on in cluster tiny\n"
        in done.stderr
    )
    assert "bamboo status --watch --cluster tiny" in done.stderr
    assert "bamboo down --cluster tiny" in done.stderr
    assert "to be tried" not in done.stderr


def test_a_recipe_file_that_was_changed_meanwhile_is_another(job_file: Path, tmp_path: Path, world: World) -> None:
    path = stored(world, tmp_path)
    (tmp_path / "mine.py").write_text("from bamboo_trainer.models.gpt2 import recipe\n")

    with pytest.raises(StateError, match="of another recipe"):
        run_to_join(path, load_job(job_file, ()))


def test_a_run_that_has_ended_is_in_nobodys_way(job_file: Path, tmp_path: Path, world: World) -> None:
    world.handle(ev.RequestMade(request_id=2, request=ev.CloseCluster()))
    path = stored(world, tmp_path)

    assert run_to_join(path, load_job(job_file, ("seed=1",))) is None


@pytest.mark.parametrize(("closing", "says"), [(False, True), (True, False)])
def test_nodes_are_said_to_stay_unless_the_cluster_is_taken_down(
    tmp_path: Path, world: World, capsys: pytest.CaptureFixture[str], closing: bool, says: bool
) -> None:
    if closing:
        world.handle(ev.RequestMade(request_id=2, request=ev.CloseCluster()))

    tell_what_stays(stored(world, tmp_path))

    assert ("still rented" in capsys.readouterr().err) is says
