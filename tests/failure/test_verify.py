"""A run that lost nodes is certified; what is tampered with afterwards is found and named.

One run for all tests: a failover, another number of pipelines, a restore. Whoever tampers puts it back.
"""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from bamboo_cli.coordinator.schema import pack, unpack
from tests.cluster import WITHOUT_REPLACEMENT, Bamboo

pytestmark = pytest.mark.timeout(300)

STEPS = 24
RECIPE = "from bamboo_trainer.models import mlp\n\n\ndef recipe():\n    return mlp.recipe()\n"
DRILL = [
    {"step": 5, "pipeline": 1, "stage": 1, "action": "1B3"},  # a standby takes its place
    {"step": 11, "pipeline": 1, "stage": 0, "action": "REDUCE"},  # three are left: one pipeline
    {"step": 18, "pipeline": 0, "stage": 0, "action": "0B0"},  # both stages of it: back to a checkpoint
    {"step": 18, "pipeline": 0, "stage": 1, "action": "1B1"},
]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, nursery: dict[str, str]) -> Iterator[Bamboo]:
    bamboo = Bamboo(folder=tmp_path_factory.mktemp("verified"), environment=dict(nursery))
    recipe = bamboo.folder / "recipe.py"
    recipe.write_text(RECIPE)
    shape = {"pipelines": 2, "stages": 2, "nodes": 5, "local": WITHOUT_REPLACEMENT}
    try:
        summary = bamboo.run(recipe=str(recipe), recipe_options={}, steps=STEPS, drill=DRILL, **shape)
        assert (summary["preemptions"], summary["restores"]) == (4, 1), bamboo.story()
        yield bamboo
    finally:
        bamboo.end_everything()


def verify(bamboo: Bamboo, *options: str) -> tuple[int, dict[str, Any], str]:
    outcome = bamboo.call("verify", *options, "--json")
    assert outcome.stdout, outcome.stderr
    return outcome.exit_code, json.loads(outcome.stdout), outcome.stderr


def texts(found: dict[str, Any]) -> list[str]:
    return [problem["text"] for problem in found["problems"]]


@contextmanager
def overwritten(path: Path, data: bytes | None) -> Iterator[None]:
    """None: the file is gone."""
    before = path.read_bytes()
    try:
        if data is None:
            path.unlink()
        else:
            path.write_bytes(data)
        yield
    finally:
        path.write_bytes(before)


@contextmanager
def with_row(bamboo: Bamboo, step: int, change: str, *values: Any) -> Iterator[None]:
    """``change``: SQL with ``WHERE step = …`` left out; the row is put back as it was."""
    with closing(sqlite3.connect(bamboo.cluster_dir / "state.db", isolation_level=None)) as state:
        before = state.execute("SELECT * FROM steps WHERE step = ?", (step,)).fetchone()
        state.execute(f"{change} WHERE step = ?", (*values, step))
        try:
            yield
        finally:
            state.execute(f"REPLACE INTO steps VALUES ({', '.join('?' * len(before))})", before)


def losses_of(bamboo: Bamboo, step: int) -> bytes:
    with closing(sqlite3.connect(bamboo.cluster_dir / "state.db")) as state:
        found: bytes = state.execute("SELECT losses FROM steps WHERE step = ?", (step,)).fetchone()[0]
        return found


def checkpoint_file(bamboo: Bamboo, pattern: str) -> Path:
    (found,) = (bamboo.cluster_dir / "checkpoints").glob(f"*/{pattern}")
    return found


def test_all_steps_of_a_run_with_four_losses_are_equal(finished: Bamboo) -> None:
    exit_code, found, stderr = verify(finished, "--all")

    assert exit_code == 0, (found["problems"], stderr)
    assert [(v["step"], v["verdict"]) for v in found["steps"]] == [(step, "equal") for step in range(STEPS)]
    assert {v["num_pipelines"] for v in found["steps"]} == {1, 2}
    assert [(v["what"], v["verdict"]) for v in found["layers"]] == [
        ("checkpoint of step 19", "equal"),
        ("checkpoint of step 23", "equal"),
        ("final weights", "equal"),
    ]
    assert any("had to be run again after 1 restore" in note for note in found["notes"])
    assert found["summary"].startswith(f"verified: run {found['run_id']}: 24 of 24 committed steps in the ledger")


def test_one_bit_of_one_recorded_loss_is_found_and_named(finished: Bamboo) -> None:
    packed = bytearray(losses_of(finished, 21))
    packed[16] ^= 1
    before, after = unpack(losses_of(finished, 21)), unpack(bytes(packed))

    with with_row(finished, 21, "UPDATE steps SET losses = ?", pack(after)):
        exit_code, found, stderr = verify(finished, "--steps", "20:23")

    assert exit_code == 1
    assert "from the checkpoint of step 19" in found["chosen"]
    assert [v["verdict"] for v in found["steps"]] == ["equal", "differs", "equal"]
    expected = f"loss of microbatch 2: {after[2]!r} in the ledger, {before[2]!r} computed again"
    assert found["steps"][1]["detail"] == expected
    assert "is not verified" in stderr


def test_a_row_that_was_taken_out_is_missed_and_computing_the_steps_again_proves_it(finished: Bamboo) -> None:
    with with_row(finished, 20, "DELETE FROM steps"):
        without, missed, _ = verify(finished, "--ledger")
        proved, found, _ = verify(finished, "--steps", "20:22")

    assert without == 1
    assert texts(missed) == [
        "the ledger has no row of it; compute it and the next one again to prove it: --steps 20:22"
    ]
    assert proved == 0
    assert found["steps"][0]["detail"] == "the ledger has no row of it; what rests on it is equal, and so proves it"


def test_a_row_that_says_another_loss_is_named_without_computing_anything(finished: Bamboo) -> None:
    with with_row(finished, 7, "UPDATE steps SET loss = loss * 0.99"):
        exit_code, found, _ = verify(finished, "--ledger")

    assert (exit_code, [p["step"] for p in found["problems"]]) == (1, [7])
    assert "is not the mean of its microbatches' losses" in texts(found)[0]


def test_a_corrupt_checkpoint_is_named_and_not_begun_from(finished: Bamboo) -> None:
    file = checkpoint_file(finished, "step-00000019/layer-0002.safetensors")
    with overwritten(file, file.read_bytes()[:-1] + b"\xa5"):
        exit_code, found, _ = verify(finished, "--steps", "20:21")

    assert exit_code == 1
    (text,) = texts(found)
    assert text.endswith("step-00000019/layer-0002.safetensors is corrupt: its SHA-256 is not the one in the manifest")
    assert "from the seed" in found["chosen"]
    assert {v["verdict"] for v in found["steps"]} == {"equal"}


def test_a_checkpoint_or_a_model_that_is_not_what_it_was_is_named(finished: Bamboo) -> None:
    marker = checkpoint_file(finished, "step-00000023/manifest.json")
    model = checkpoint_file(finished, "model.safetensors")
    model_bytes = model.read_bytes()

    with overwritten(marker, None):
        _, gone, _ = verify(finished, "--ledger")
    with overwritten(marker, marker.read_bytes().replace(b'"seed": 0', b'"seed": 1').replace(b'"seed":0', b'"seed":1')):
        _, reseeded, _ = verify(finished, "--ledger")
    with overwritten(model, model_bytes[:-1] + bytes([model_bytes[-1] ^ 1])):
        exit_code, other, _ = verify(finished, "--ledger")

    assert any("checkpoint of step 23" in t and "missing or incomplete: no manifest.json" in t for t in texts(gone))
    assert any("was made from seed 1" in text for text in texts(reseeded))
    assert exit_code == 1
    assert [p["about"] for p in other["problems"]] == ["model"]
    assert texts(other)[0].endswith("is not that of the checkpoint of step 23")


def test_a_recipe_that_has_changed_since_is_named(finished: Bamboo) -> None:
    changed = RECIPE.replace("mlp.recipe()", "mlp.recipe(dropout=0.2)").encode()
    with overwritten(finished.folder / "recipe.py", changed):
        exit_code, found, _ = verify(finished, "--steps", "20:21")

    assert exit_code == 1
    assert "has changed since the run began" in texts(found)[0]
    assert found["steps"][0]["verdict"] == "differs"


def test_what_cannot_be_verified_is_said(finished: Bamboo) -> None:
    no_run = finished.call("verify", "nothing-1")
    no_step = finished.call("verify", "--steps", "20:30")
    no_range = finished.call("verify", "--steps", "a few")
    both = finished.call("verify", "--all", "--ledger")

    assert (no_run.exit_code, no_step.exit_code, no_range.exit_code, both.exit_code) == (1, 2, 2, 2)
    assert "there is no run nothing-1" in no_run.stderr
    assert "steps 20:30 cannot be computed again: steps 0 to 23 are committed" in no_step.stderr
    assert "--steps a few is no range of steps" in no_range.stderr
    assert "exclude each other" in both.stderr
