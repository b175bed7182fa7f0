"""Errors become text on stderr and an exit code, in one place."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from bamboo_cli import main as main_module
from bamboo_cli import output, streams
from bamboo_cli.errors import CapacityError
from bamboo_cli.job_file import load_job
from tests.cli import ledger_file
from tests.cli.command import bamboo

MINIMAL = "name: tiny\nsteps: 10\nglobal_batch_size: 8\nmicrobatch_size: 2\n"


def test_a_mistake_in_the_job_file_ends_with_2_and_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(MINIMAL + "stagse: 3\n")

    done = bamboo("plan", str(tmp_path / "job.yaml"), home=tmp_path)

    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(f"error: {tmp_path}/job.yaml:5: stagse: there is no such key; did you mean `stages`?")
    assert "Traceback" not in done.stderr


def test_an_unknown_option_ends_with_2(tmp_path: Path) -> None:
    assert bamboo("plan", "--nonsense", home=tmp_path).returncode == 2


@pytest.mark.parametrize("arguments", [("status",), ("events",), ("cost",), ("logs",), ("down", "--yes")])
def test_without_a_cluster_commands_end_with_1_and_say_how_to_start_one(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    done = bamboo(*arguments, home=tmp_path)

    assert done.returncode == 1
    assert "there is no cluster" in done.stderr
    assert "bamboo up" in done.stderr


@pytest.mark.parametrize("verb", ["up", "run"])
def test_nothing_is_rented_without_a_terminal_or_yes(tmp_path: Path, verb: str) -> None:
    (tmp_path / "job.yaml").write_text(MINIMAL)

    done = bamboo(verb, str(tmp_path / "job.yaml"), home=tmp_path / "home")

    assert done.returncode == 2
    assert "Rent 2 nodes on local" in done.stderr
    assert "--yes" in done.stderr
    assert not (tmp_path / "home").exists()


def test_a_bug_ends_with_3_and_a_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def broken() -> None:
        raise ZeroDivisionError("unforeseen")

    monkeypatch.setattr(main_module, "app", broken)

    with pytest.raises(SystemExit) as ended:
        main_module.main()

    assert ended.value.code == 3
    said = capsys.readouterr().err
    assert "ZeroDivisionError: unforeseen" in said
    assert "bug in Bamboo" in said


def test_a_foreseen_error_ends_with_its_message_and_next_step(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def short() -> None:
        raise CapacityError("zone a has no instance left", next_step="Try zone b.")

    monkeypatch.setattr(main_module, "app", short)

    with pytest.raises(SystemExit) as ended:
        main_module.main()

    assert ended.value.code == 1
    assert capsys.readouterr().err == "error: zone a has no instance left\nTry zone b.\n"


def test_plan_as_json_has_the_placement_and_the_price(tmp_path: Path) -> None:
    import json

    (tmp_path / "job.yaml").write_text(MINIMAL)

    done = bamboo("plan", str(tmp_path / "job.yaml"), "--json", home=tmp_path)

    plan = json.loads(done.stdout)
    workers = [(node["node_id"], worker) for node in plan["nodes"] for worker in node["workers"]]
    assert [(node_id, w["stage_index"], w["shadows_stages"]) for node_id, w in workers] == [
        ("n1", 0, [1]),
        ("n2", 1, [0]),
    ]
    assert plan["bubble_share"] == pytest.approx(1 / 5)
    assert plan["spot_usd_per_hour"] == pytest.approx(0.62)


def test_init_writes_a_job_that_can_be_planned_and_does_not_write_over_it(tmp_path: Path) -> None:
    first = bamboo("init", str(tmp_path / "mine"), home=tmp_path)
    planned = bamboo("plan", str(tmp_path / "mine" / "job.yaml"), home=tmp_path)
    second = bamboo("init", str(tmp_path / "mine"), home=tmp_path)

    assert (first.returncode, planned.returncode, second.returncode) == (0, 0, 2)
    assert "already there; nothing was written" in second.stderr


@pytest.mark.parametrize("options", [(), ("--minimal",)])
def test_init_names_the_job_after_its_folder(tmp_path: Path, options: tuple[str, ...]) -> None:
    for folder, name in (("first", "first"), ("My 2nd try", "my-2nd-try"), ("x" * 60, "x" * 40)):
        done = bamboo("init", str(tmp_path / folder), *options, home=tmp_path)
        assert done.returncode == 0
        assert f"`bamboo run {shlex.quote(str(tmp_path / folder / 'job.yaml'))}`" in done.stderr
        assert load_job(tmp_path / folder / "job.yaml").name == name


@pytest.fixture
def spent(tmp_path: Path) -> Path:
    """A home with a cluster that has cost something on two days."""
    ledger_file.make(
        tmp_path / "clusters" / "groesse", begin=1_760_000_000.0, days=2, num_nodes=1, prices_a_day=1, num_steps=2
    )
    return tmp_path


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_what_standard_output_cannot_encode_is_written_in_ascii(spent: Path, encoding: str) -> None:
    environment = {"PYTHONIOENCODING": encoding, "TZ": "UTC"}

    done = bamboo("cost", "--by", "day", home=spent, environment=environment)

    assert done.returncode == 0, done.stderr
    assert "########" in done.stdout and "?" not in done.stdout


def test_json_is_whole_whatever_the_encoding_of_standard_output(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    output.json_line({"job": "größer"})
    monkeypatch.setattr(streams, "takes_all_letters", lambda: False)
    output.json_line({"job": "größer"})

    first, second = capsys.readouterr().out.splitlines()
    assert "größer" in first and second.isascii()
    assert json.loads(first) == json.loads(second)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full disk here")
@pytest.mark.parametrize("arguments", ["cost", "cost --csv", "--help"])
def test_a_full_disk_is_told_and_no_bug(spent: Path, arguments: str) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", f'exec "$0" -m bamboo_cli.main {arguments} > /dev/full', sys.executable],
        env={"BAMBOO_HOME": str(spent), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert (done.returncode, done.stderr) == (1, "error: standard output cannot be written: No space left on device\n")


def test_closed_streams_lead_nowhere(spent: Path) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", 'exec "$0" -m bamboo_cli.main cost <&- >&- 2>&-', sys.executable],
        env={"BAMBOO_HOME": str(spent), "PATH": "/usr/bin:/bin"},
        timeout=60,
    )

    assert done.returncode == 0
