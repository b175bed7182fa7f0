"""A run that was gone on with is another one's: a loss that only an earlier one had is named with how to look at it."""

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bamboo_cli.coordinator import pages, store
from bamboo_cli.errors import StateError, UsageError
from bamboo_cli.main import app
from tests.cli import scenes, wide_file
from tests.cli.stored import stored
from tests.coordinator.small_world import World
from tests.tracing.example import CALM

EARLIER = wide_file.RUN


@pytest.fixture
def cluster(tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state file of a cluster whose run lost nothing, beside that of an earlier one whose run lost n6."""
    monkeypatch.setenv("BAMBOO_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    before, path = scenes.healed(tmp_path), stored(world, tmp_path)
    before.rename(path.with_name("tiny-0a1b2c.db"))
    engine = store.open_for_writing(path)
    with store.writing(engine) as connection:
        for page in CALM:
            pages.keep(connection, page.worker_id, replace(page.recorded, run_id="tiny-1"))
    engine.dispose()
    return path


def bamboo(*arguments: str) -> tuple[str, str]:
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    return done.stdout, done.stderr


@pytest.mark.usefixtures("cluster")
def test_the_loss_of_an_earlier_run_is_told_by_the_command_that_is_named() -> None:
    none, note = bamboo("events", "--loss", "latest", "--cluster", "tiny")
    empty, _ = bamboo("events", "--loss", "latest", "--cluster", "tiny", "--json")

    command = f"bamboo events --loss latest --run {EARLIER} --cluster tiny"
    assert (none, note) == ("no loss is on record\n", f"Run {EARLIER} had one: `{command}`.\n")
    assert empty == "[]\n"
    assert bamboo(*command.split()[1:])[0].startswith("n6 was taken without notice")


@pytest.mark.usefixtures("cluster")
def test_a_node_that_only_an_earlier_run_lost_is_found_there() -> None:
    with pytest.raises(UsageError, match="no loss of n6 is on record") as refused:
        bamboo("events", "--loss", "n6", "--cluster", "tiny")
    with pytest.raises(UsageError) as never:
        bamboo("events", "--loss", "n77", "--cluster", "tiny")

    assert f"--loss n6 --run {EARLIER} --cluster tiny`" in refused.value.next_step
    assert never.value.next_step == "No node was lost so far."


def test_a_picture_without_a_failover_names_the_run_that_has_one(cluster: Path) -> None:
    printed, note = bamboo("trace", "--svg", "--cluster", "tiny")
    _, asked_for_a_step = bamboo("trace", "--svg", "--step", "0", "--cluster", "tiny")

    assert printed == f"{cluster.parent.parent.parent / 'tiny-1-step0.svg'}\n"
    assert f"Run {EARLIER} had one: `bamboo trace {EARLIER} --svg --cluster tiny`." in note
    assert EARLIER not in asked_for_a_step


@pytest.mark.usefixtures("cluster")
def test_a_trace_is_put_into_the_folder_that_is_named(tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()

    printed, _ = bamboo("trace", "tiny-1", "-o", "traces")

    assert printed == "traces/tiny-1.trace.json\n" and (tmp_path / printed.strip()).exists()


@pytest.mark.usefixtures("cluster")
def test_of_a_run_that_there_never_was_no_picture_is_drawn() -> None:
    with pytest.raises(StateError, match="there is no run nope"):
        bamboo("trace", "nope", "--svg")
