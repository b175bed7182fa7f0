"""What the shell offers at a press of the tab key: from the state files, quickly, and never an error."""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bamboo_cli import completion, health
from bamboo_cli.costs import periods
from bamboo_cli.drills.losses import How
from bamboo_cli.main import app
from tests.cli.stored import stored
from tests.coordinator.small_world import World
from tests.docs.command_tree import commands

BIN = Path(sys.executable).parent
HEAVY = ("torch", "boto3", "sqlalchemy", "websockets", "yaml", "psutil", "asyncio")


@pytest.fixture
def home(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a machine that has a cluster `tiny` with nodes n1 and n2 and a run tiny-1."""
    path = stored(world, tmp_path / "home")
    (path.parent / "cluster.json").write_text('{"cluster_id": "tiny-3f2a1c", "cloud": "aws", "regions": ["eu-west-9"]}')
    monkeypatch.setenv("BAMBOO_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


def offered(line: str) -> list[str]:
    """For what stands behind the last space, as bash asks for it."""
    words = line.split(" ")
    asked = {"_BAMBOO_COMPLETE": "complete_bash", "COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)}
    done = CliRunner().invoke(app, [], env=asked, prog_name="bamboo")
    assert (done.exit_code, done.stderr) == (0, "")
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("bamboo pre", ["preempt"]),
        ("bamboo preempt ", ["n1", "n2"]),
        ("bamboo logs n", ["n1", "n2"]),
        ("bamboo logs --cluster other ", []),
        ("bamboo events --cluster tiny --node ", ["n1", "n2"]),
        ("bamboo status --cluster ", ["tiny"]),
        ("bamboo events --run ", ["tiny-1"]),
        ("bamboo verify ", ["tiny-1"]),
        ("bamboo train job.yaml --resume ", ["latest", "tiny-1"]),
        ("bamboo down --cluster-id ", ["tiny-3f2a1c"]),
        ("bamboo cost --by z", ["zone"]),
        ("bamboo cost --since to", ["today"]),
        ("bamboo check ", ["aws"]),
        ("bamboo drill job.yaml --losses kill,fre", ["kill,freeze", "kill,freeze-node"]),
        ("bamboo plan job.yaml --set checkpoint.e", ["checkpoint.every="]),
        ("bamboo prices --type g6e.1", ["g6e.12xlarge", "g6e.16xlarge"]),
        ("bamboo prices --region eu", ["eu-west-9"]),
        ("bamboo run --res", ["--resume"]),
    ],
)
def test_what_fits_is_offered(home: Path, line: str, expected: list[str]) -> None:
    assert offered(line) == expected


def test_nodes_that_are_gone_cannot_be_preempted(home: Path) -> None:
    path = home / "clusters" / "tiny" / "state.db"
    _change(path, "UPDATE machine SET body = json_set(body, '$.state', 'ended') WHERE name = 'node/n1'")

    assert offered("bamboo preempt ") == ["n2"]
    assert offered("bamboo events --node ") == ["n1", "n2"]
    assert offered("bamboo events --loss ") == ["all", "latest", "n1"]


def test_job_files_are_offered_here_and_one_folder_below(home: Path, tmp_path: Path) -> None:
    for name in ("my-job/job.yaml", "my-job/recipe.py", "my-job/deep/other.yaml", "with space/job.yaml", ".x/job.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")

    assert offered("bamboo plan ") == ["job.yaml", "my-job/job.yaml"]
    assert offered("bamboo plan my-job/") == ["my-job/deep/other.yaml", "my-job/job.yaml"]
    assert offered("bamboo plan my-job/d") == ["my-job/deep/other.yaml"]
    assert offered("bamboo plan nowhere/") == []
    assert offered(f"bamboo plan {tmp_path}/my-job/j") == [f"{tmp_path}/my-job/job.yaml"]


@pytest.mark.parametrize("damage", ["nothing there", "garbage", "foreign", "empty", "locked", "a folder"])
def test_state_that_cannot_be_read_offers_nothing_and_says_nothing(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    """Of every command's every argument and option, those that come later too."""
    folder = home / "clusters" / "tiny"
    (folder / "cluster.json").write_text('["no object"]' if damage == "foreign" else "{")
    path = folder / "state.db"
    for file in folder.glob("state.db*"):
        if damage != "locked":
            file.unlink()
    match damage:
        case "nothing there":
            monkeypatch.setenv("BAMBOO_HOME", str(tmp_path / "nowhere"))
        case "garbage":
            path.write_bytes(b"\x00\xffgarbage" * 500)
        case "foreign":
            _change(path, "CREATE TABLE machine (name, other)")
        case "empty":
            path.touch()
        case "a folder":
            path.mkdir()

    lines = [f"bamboo {name} {before}" for name, command in commands() for before in _places(command)]
    found = {line: offered(line) for line in lines}

    assert len(lines) > 50
    assert damage == "locked" or found["bamboo preempt "] == []


def _places(command: object) -> list[str]:
    """Where something can be typed: the arguments, and behind each option."""
    options = [p for p in command.params if p.param_type_name == "option" and not p.is_flag]  # type: ignore[attr-defined]
    return ["", *(f"{option.opts[0]} " for option in options)]


def _change(path: Path, statement: str) -> None:
    import sqlite3
    from contextlib import closing

    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement)


def test_offering_loads_nothing_heavy(home: Path) -> None:
    code = (
        "import sys\nfrom bamboo_cli.main import main\nsys.argv = ['bamboo']\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        f"print('heavy:', [name for name in {HEAVY} if name in sys.modules])\n"
    )
    asked = {"_BAMBOO_COMPLETE": "complete_bash", "COMP_WORDS": "bamboo preempt ", "COMP_CWORD": "2"}

    done = _run([sys.executable, "-c", code], asked | {"BAMBOO_HOME": str(home)})

    assert done.stdout.split("\n")[:3] == ["n1", "n2", "heavy: []"]


def test_a_real_bash_completes(home: Path) -> None:
    """With the script that `--install-completion` puts down."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash here")
    script = """
        eval "$(_BAMBOO_COMPLETE=source_bash bamboo)"
        COMP_WORDS=(bamboo preempt n) COMP_CWORD=2
        $(complete -p bamboo | sed -E 's/.*-F ([^ ]+).*/\\1/') bamboo
        echo "offered: ${COMPREPLY[*]}"
        complete -p bamboo
    """

    done = _run([bash, "--norc", "-c", script], {"BAMBOO_HOME": str(home), "PATH": f"{BIN}:/usr/bin:/bin"})

    assert done.stderr == ""
    assert "offered: n1 n2" in done.stdout
    assert "-o default" in done.stdout  # files where nothing is offered


def test_zsh_and_fish_are_answered_in_their_own_way(home: Path) -> None:
    zsh = CliRunner().invoke(
        app,
        [],
        env={"_BAMBOO_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "bamboo preempt "},
        prog_name="bamboo",
    )
    fish = CliRunner().invoke(
        app,
        [],
        env={
            "_BAMBOO_COMPLETE": "complete_fish",
            "_TYPER_COMPLETE_ARGS": "bamboo preempt ",
            "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        },
        prog_name="bamboo",
    )

    assert (zsh.exit_code, fish.exit_code) == (0, 0)
    assert '"n1"' in zsh.stdout and "_arguments" in zsh.stdout
    assert fish.stdout.split() == ["n1", "n2"]


def test_values_are_those_of_the_rest_of_bamboo() -> None:
    assert tuple(How) == completion.LOSSES
    assert set(completion.GONE) == {"lost", *health.GONE}
    assert all(periods.moment(period, now=1e9) for period in completion.PERIODS)


def _run(words: Sequence[str], environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(words, capture_output=True, text=True, timeout=60, env=environment)
