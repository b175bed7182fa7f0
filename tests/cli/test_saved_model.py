"""`bamboo export` and `bamboo eval`: the commands over a state file and a checkpoint, their work in a real process."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
from bamboo_trainer.models import mlp
from click.testing import Result
from typer.testing import CliRunner

from bamboo_cli.errors import BambooError, StateError, UsageError
from bamboo_cli.main import app
from tests.tracking.recorded import Recorded
from tests.trainer.saved import saved_run


@pytest.fixture
def run(tmp_path: Path, nursery: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Recorded:
    """With a checkpoint of its step 1."""
    for name, value in {**nursery, "BAMBOO_HOME": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    spec = saved_run(tmp_path / "checkpoints", mlp.recipe(), run_id="demo-1")
    recorded = Recorded(tmp_path, url=spec.checkpoint_url)
    recorded.steps(0, 2)
    recorded.checkpoints(1)
    return recorded


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def answer(*arguments: str) -> dict[str, Any]:
    done = call(*arguments, "--json")
    assert done.exit_code == 0, (done.output, done.exception)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def refused(*arguments: str) -> BambooError:
    error = call(*arguments).exception
    assert isinstance(error, BambooError), error
    return error


def test_the_newest_checkpoint_is_exported_and_evaluated(run: Recorded, tmp_path: Path) -> None:
    exported = answer("export", "--to", str(tmp_path / "model"))
    evaluated = answer("eval", "demo-1")

    assert (exported["run_id"], exported["step"], exported["architecture"]) == ("demo-1", 1, "")
    tensors = safetensors.torch.load_file(tmp_path / "model" / "model.safetensors")
    assert sum(tensor.numel() for tensor in tensors.values()) == exported["num_parameters"]
    assert (evaluated["step"], evaluated["num_samples"], evaluated["perplexity"]) == (1, 512, None)
    assert 0 < evaluated["loss"] < math.log(mlp.NUM_CLASSES) + 0.5
    text = call("eval", "--batches", "2", "--data", "training").stdout
    assert text.startswith("step 1 of run demo-1: loss ") and text.endswith("(training data, 32 of 4096 samples)\n")


def test_what_cannot_be_done_is_told_with_what_to_do(run: Recorded, tmp_path: Path) -> None:
    other_data = refused("eval", "--data", "/books")
    other_step = refused("export", "--to", "model", "--step", "0")
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    not_a_folder = refused("export", "--to", str(in_the_way))
    run.checkpoints()
    none = refused("eval")

    assert "opens no other data" in other_data.message
    assert isinstance(other_step, UsageError) and "There are: 1." in other_step.next_step
    assert "file" in not_a_folder.message and "Traceback" not in not_a_folder.message
    assert isinstance(none, StateError) and "run demo-1 has no complete checkpoint" in none.message
    assert isinstance(refused("export"), UsageError)


@pytest.mark.parametrize("target", ["", " ", "s3://", "gs:///"])
def test_no_place_is_no_place_to_export_to(
    run: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    assert isinstance(error := refused("export", "--to", target), UsageError) and "names no place" in error.message
    assert not any((tmp_path / "here").iterdir())


def test_a_url_that_lacks_a_slash_is_no_folder(run: Recorded) -> None:
    assert refused("export", "--to", "s3:/bucket/x").message.endswith("did you mean s3://bucket/x?")
    assert refused("export", "--to", "file:/x").message.endswith("did you mean file:///x?")


def test_names_that_are_not_utf8_are_told(run: Recorded) -> None:
    for error in (refused("export", "--to", "mod\udce4l"), refused("eval", "--data", "d\udce4ta")):
        assert isinstance(error, UsageError) and "is not UTF-8" in error.message


def test_a_home_of_nobody_is_a_folder_like_any(run: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert answer("export", "--to", "~nobody-of-that-name/x")["url"] == f"{tmp_path}/~nobody-of-that-name/x"
