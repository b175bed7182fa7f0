"""`bamboo train` of a job whose run goes on already, as after Ctrl-C."""

from dataclasses import replace
from pathlib import Path

import pytest

from bamboo_cli.coordinator import events as ev
from bamboo_cli.errors import StateError, StoppedError
from bamboo_cli.job_file import load_job
from bamboo_cli.training import check_done, run_to_join, summary_of, tell_what_stays
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


@pytest.mark.parametrize("request_made", [ev.StopRun(run_id="tiny-1"), ev.CloseCluster()])
def test_who_looks_on_at_a_run_that_is_taken_down_is_told_what_is_kept_and_how_to_go_on(
    tmp_path: Path, world: World, request_made: ev.Request
) -> None:
    world.handle(ev.RequestMade(request_id=2, request=request_made))
    world.pump()
    found, path = replace(summary_of(stored(world, tmp_path), "tiny-1"), steps=1), tmp_path / "a job.yaml"
    assert found.stopped_by_down, found.reason

    with pytest.raises(StoppedError, match=r"^run tiny-1 was stopped by `bamboo down`, after 1 step$") as nothing_kept:
        check_done(replace(found, checkpoint_step=None), tmp_path, path)
    with pytest.raises(StoppedError) as all_kept:
        check_done(replace(found, checkpoint_step=0), tmp_path, path)
    with pytest.raises(StoppedError) as most_kept:
        check_done(replace(found, steps=4, checkpoint_step=0), tmp_path, path)

    assert "There is no complete checkpoint" in nothing_kept.value.next_step
    assert f"step 0, in {found.checkpoint_url}; go on with `bamboo run '{path}' --resume tiny-1`" in str(
        all_kept.value.next_step
    )
    assert "(the 3 steps after it will be computed again)" in most_kept.value.next_step
    assert (all_kept.value.label, all_kept.value.exit_code) == ("stopped", 1)
