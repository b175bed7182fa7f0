"""``status``, ``events`` and ``logs`` as commands, on state files, with nobody at the terminal."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bamboo_cli.errors import UsageError
from bamboo_cli.main import app
from tests.cli import scenes, wide_file


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BAMBOO_HOME", str(tmp_path))
    return tmp_path


def bamboo(*arguments: str) -> str:
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    return done.stdout


def test_status_of_two_hundred_nodes_is_short_unless_each_is_asked_for(home: Path) -> None:
    scenes.storm(home, wide=True)

    brief, whole = bamboo("status"), bamboo("status", "--nodes")

    assert len(brief.splitlines()) < 30 and "198 nodes without a word" in brief
    assert "n2" in brief and "will be taken in 0 s; noticed" in brief, "its deadline has long passed"
    assert sum(line.startswith("n") for line in whole.splitlines()) > 200
    assert "\x1b" not in brief + whole


def test_status_as_json_has_what_the_view_shows(home: Path) -> None:
    scenes.storm(home)

    found = json.loads(bamboo("status", "--json"))

    assert found["run"]["committed_steps"] == 801 and found["microusd_per_hour"] == 9 * 302_000
    assert found["projected_microusd"] > found["spot_microusd"] > 0
    assert found["plan"]["pipelines"][1]["stages"][1]["host"] == "n5/1"
    assert "job_text" not in found and "fetches" not in found["plan"]


@pytest.mark.parametrize(
    ("verb", "says"),
    [
        ("status", r"cost (\S+) for the cluster so far; .*an hour now; .* and the cluster has cost (\S+) then"),
        ("cost", r"wide-1: cost (\S+) so far; at this pace done in .*, and has cost (\S+) then"),
    ],
)
def test_what_it_has_cost_and_will_have_cost_are_of_one_thing_which_is_named(home: Path, verb: str, says: str) -> None:
    scenes.storm(home)

    found = re.search(says, bamboo(verb), flags=re.DOTALL)

    assert found is not None
    so_far, then = (float(amount.strip("$").replace(",", "")) for amount in found.groups())
    assert 0.0 < so_far < then


def test_a_loss_is_told_step_by_step_with_times(home: Path) -> None:
    scenes.healed(home)

    text = bamboo("events", "--loss", "latest")

    assert text == bamboo("events", "--loss", "n6") == bamboo("events", "--loss", "all")
    first, *moments, outcome = text.splitlines()
    assert first.startswith("n6 was taken without notice at ") and first.endswith(", in step 790")
    assert [line.split()[0] for line in moments if "committed" in line] == ["-8.98", "+4.31", "+49.26"]
    assert "step 790 is committed, 13.29 s after the one before (usually 8.99 s)" in text
    assert outcome == "in all: 4.30 s late, 0 steps run again, whole again after 49 s"
    (told,) = json.loads(bamboo("events", "--loss", "n6", "--json"))
    assert told["late_s"] == pytest.approx(4.3) and len(told["moments"]) == 13


def test_a_loss_that_never_was_is_an_error_that_names_those_that_were(home: Path) -> None:
    path = scenes.healed(home)

    with pytest.raises(UsageError, match="no loss of n3 is on record") as refused:
        bamboo("events", "--loss", "n3")
    assert refused.value.next_step == "Lost were: n6."
    with pytest.raises(UsageError, match="goes with neither"):
        bamboo("events", "--loss", "n6", "--follow")
    wide_file.make(path.parent.parent / "calm", now=scenes.NOW, num_pipelines=1, num_stages=2)
    assert bamboo("events", "--cluster", "calm", "--loss", "latest") == "no loss is on record\n"


def test_the_story_of_a_node_has_its_loss_and_what_that_led_to(home: Path) -> None:
    scenes.healed(home)

    victim, shadow = bamboo("events", "--node", "n6"), bamboo("events", "--node", "n5")

    for words in ("link to the agent of n6", "n5/1 hosts stage 1 of pipeline 1 too", "plan 3 from step 796"):
        assert words in victim
    assert "n9 joined" not in victim
    assert "lost n6/1: n5/1 hosts stage 1" in shadow and "plan 3" not in shadow
    assert len(bamboo("events", "--node", "n6", "-n", "2").splitlines()) == 3


def test_logs_are_prefixed_and_searched_and_those_of_a_machine_that_is_gone_are_there(home: Path) -> None:
    path = scenes.healed(home)
    (path.parent / "coordinator.log").write_text("2026-01-01 10:00:01,000 INFO all is well\n")
    (path.parent / "nodes" / "n6").mkdir(parents=True)
    (path.parent / "nodes" / "n6" / "worker.log").write_text("2026-01-01 10:00:00,900 I the last word\n")
    (path.parent / "nodes" / "n3.log").write_text("unpacking\nno space left on device\n")

    done = CliRunner().invoke(app, ["logs"])

    assert done.stdout.splitlines() == [
        "n3 setup     unpacking",
        "n3 setup     no space left on device",
        "n6 worker    2026-01-01 10:00:00,900 I the last word",
        "coordinator  2026-01-01 10:00:01,000 INFO all is well",
    ]
    assert done.stderr == ""
    assert bamboo("logs", "n3", "n4", "-g", "SPACE|space") == "n3 setup  no space left on device\n"
