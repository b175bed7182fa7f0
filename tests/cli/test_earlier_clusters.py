"""A cluster that was taken down and put aside keeps its bill and its story; nothing more is asked of it."""

import json
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bamboo_cli import clusters
from bamboo_cli.coordinator import events as ev
from bamboo_cli.coordinator import journal, reader, store
from bamboo_cli.errors import UsageError
from bamboo_cli.job_file import load_job
from bamboo_cli.main import app
from bamboo_cli.providers.local_cloud import processes
from tests.cli.command import bamboo
from tests.cli.stored import stored
from tests.coordinator.small_world import World


@pytest.fixture
def down(tmp_path: Path, world: World) -> Path:
    """The state file of a cluster that is down, whose run tiny-1 told something."""
    world.handle(ev.RequestMade(request_id=2, request=ev.CloseCluster()))
    world.pump(training=False)
    path = stored(world, tmp_path)
    engine = store.open_for_writing(path)
    with store.writing(engine) as connection:
        journal.tell(connection, ev.Tell(kind=ev.StoryKind.RUN, text="run tiny-1 is stopped", run_id="tiny-1"), 1.0)
    engine.dispose()
    return path


@pytest.fixture
def earlier(down: Path, job_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The id of that cluster after another of its name was made."""
    monkeypatch.setenv("BAMBOO_HOME", str(tmp_path))
    cluster_id = clusters.read_identity(down.parent).cluster_id
    (down.parent / "nodes" / "n1").mkdir(parents=True)
    (down.parent / "nodes" / "n1" / "worker.log").write_text("the last words\n")
    clusters.open_or_create(load_job(job_file, ()), "", None)
    return cluster_id


def test_the_bill_of_an_earlier_cluster_is_had_by_its_id(earlier: str, tmp_path: Path) -> None:
    now, then = bamboo("cost", home=tmp_path), bamboo("cost", "--cluster", earlier, "--json", home=tmp_path)

    assert earlier in now.stderr
    assert then.returncode == 0, then.stderr
    assert [run["run_id"] for run in json.loads(then.stdout)["runs"]] == ["tiny-1"]


def test_the_story_of_an_earlier_run_is_found_by_the_run_alone(earlier: str, tmp_path: Path) -> None:
    for arguments in (("--run", "tiny-1"), ("--run", "tiny-1", "--cluster", earlier), ("--cluster", earlier)):
        found = bamboo("events", *arguments, home=tmp_path)
        assert (found.returncode, "run tiny-1 is stopped" in found.stdout) == (0, True), found.stderr


def test_the_logs_of_an_earlier_cluster_s_nodes_are_not_taken_for_those_of_the_next(
    earlier: str, tmp_path: Path
) -> None:
    (kept,) = tmp_path.glob("clusters/*/*.nodes/n1/worker.log")

    assert kept.parent.parent.name == f"{earlier}.nodes" and kept.read_text() == "the last words\n"
    assert not (kept.parent.parent.parent / "nodes").exists()


def test_a_run_that_there_never_was_is_an_error(earlier: str, tmp_path: Path) -> None:
    events, verify = (
        bamboo("events", "--run", "nope", home=tmp_path),
        bamboo("verify", "nope", "--ledger", home=tmp_path),
    )

    assert events.returncode == verify.returncode == 1
    assert "error: there is no run nope" in events.stderr
    assert events.stderr in verify.stderr


@pytest.mark.parametrize("verb", ["train", "preempt"])
def test_of_a_cluster_that_is_down_it_is_said_how_another_is_started(
    down: Path, job_file: Path, tmp_path: Path, verb: str
) -> None:
    found = bamboo(verb, str(job_file) if verb == "train" else "n1", home=tmp_path)

    assert found.returncode == 1
    assert "cluster tiny is down" in found.stderr
    assert "`bamboo up JOB` starts another" in found.stderr


def test_of_a_cluster_that_is_down_nothing_is_asked_by_down_and_nothing_is_left(
    down: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BAMBOO_HOME", str(tmp_path))

    found = CliRunner().invoke(app, ["down"], catch_exceptions=False)

    assert found.exit_code == 0, found.stderr
    assert "is down, nothing is left: it was down already\n" in found.stdout


def test_what_came_to_light_when_the_cluster_was_down_is_not_ended_unasked(
    down: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BAMBOO_HOME", str(tmp_path))
    mark = {processes.CLUSTER_VARIABLE: clusters.read_identity(down.parent).cluster_id}
    with subprocess.Popen(["/bin/sleep", "60"], env=mark) as stranger:
        with pytest.raises(UsageError, match=r"give back all nodes of cluster tiny\? Nobody can answer"):
            CliRunner().invoke(app, ["down"], catch_exceptions=False)
        stranger.kill()


class Killed(BaseException):
    """At this instant the process is gone."""


def test_the_next_one_never_goes_by_the_identity_of_the_one_before(
    down: Path, job_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even where the command that makes it is killed: `down` would sweep what is gone, and leave what is there."""
    monkeypatch.setenv("BAMBOO_HOME", str(tmp_path))
    job, earlier = load_job(job_file, ()), clusters.read_identity(down.parent)
    clusters._write_identity(down.parent, earlier)

    def die(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(clusters, "_write_identity", die)
        clusters.open_or_create(job, "", None)

    made = reader.read_status(down, now=0.0).cluster_id
    assert made != earlier.cluster_id
    assert clusters.read_identity(down.parent).cluster_id == made
    clusters.open_or_create(job, "", None)
    assert json.loads((down.parent / clusters.IDENTITY_FILE).read_text())["cluster_id"] == made
