"""`bamboo train` of a job whose run goes on already, as after Ctrl-C."""

from pathlib import Path

import pytest

from bamboo_cli.coordinator import events as ev
from bamboo_cli.errors import StateError
from bamboo_cli.job_file import load_job
from bamboo_cli.training import run_to_join, tell_what_stays
from tests.cli.command import bamboo
from tests.cli.stored import stored
from tests.coordinator.small_world import World


def test_the_run_of_the_same_job_is_looked_on_at(job_file: Path, tmp_path: Path, world: World) -> None:
    path = stored(world, tmp_path)

    assert run_to_join(path, load_job(job_file, ())) == "tiny-1"
    assert run_to_join(path, load_job(job_file, ("seed=0",))) == "tiny-1", "said or not, it is the same"


def test_a_run_of_other_settings_is_refused_before_the_recipe_is_tried(
    job_file: Path, tmp_path: Path, world: World
) -> None:
    stored(world, tmp_path)

    done = bamboo("train", str(job_file), "--set", "seed=1", home=tmp_path)

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
