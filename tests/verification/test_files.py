"""Checkpoints that are not what they were, without torch: small safetensors files made by hand."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bamboo_trainer.control import LayerSaved
from bamboo_trainer.manifest import Manifest, layer_file, make_manifest, step_folder, write_manifest

from bamboo_cli.coordinator.status import RunLedger
from bamboo_cli.verification.comparison import compare_checkpoint, compare_final
from bamboo_cli.verification.files import check_files, tensors
from bamboo_cli.verification.findings import Verdict
from tests.verification.recorded import ledger

LAYERS = ("input", "output")


def safetensors(of: dict[str, bytes]) -> bytes:
    entries, offset = {}, 0
    for name, data in of.items():
        entries[name] = {"dtype": "U8", "shape": [len(data)], "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    header = json.dumps(entries).encode()
    return len(header).to_bytes(8, "little") + header + b"".join(of.values())


def save(folder: Path, step: int, parameters: tuple[bytes, bytes] = (b"one", b"two")) -> Manifest:
    place = folder / step_folder(step)
    place.mkdir(parents=True)
    saved = []
    for layer, (name, data) in enumerate(zip(LAYERS, parameters, strict=True)):
        body = safetensors({"parameter/weight": data, "optimizer/weight/exp_avg": b"moments"})
        (place / layer_file(layer)).write_bytes(body)
        saved.append(
            LayerSaved(
                checkpoint_step=step,
                layer=layer,
                name=name,
                file=layer_file(layer),
                num_bytes=len(body),
                file_sha256=hashlib.sha256(body).hexdigest(),
                parameters_sha256=hashlib.sha256(data).hexdigest(),
            )
        )
    manifest = make_manifest(run_id="demo-1", step=step, seed=0, layers=saved, created_at="now")
    write_manifest(folder.as_uri(), manifest)
    return manifest


def on_record(folder: Path, steps: tuple[int, ...], **changes: Any) -> RunLedger:
    found = ledger(checkpoint_steps=steps, **changes)
    return replace(found, training=replace(found.training, checkpoint_url=folder.as_uri()))


def texts(of: RunLedger) -> list[str]:
    return [problem.text for problem in check_files(of).problems]


def test_whole_checkpoints_and_their_model_are_right(tmp_path: Path) -> None:
    """The second layer's parameter is tied to the first one's, so the model has it once."""
    save(tmp_path, 3)
    last = save(tmp_path, 5, (b"one", b"one"))
    model = tmp_path / "model.safetensors"
    model.write_bytes(safetensors({"input.weight": b"one"}))

    found = check_files(on_record(tmp_path, (3, 5), weights_sha256=last.weights_sha256, model_url=model.as_uri()))

    assert (found.problems, sorted(found.intact)) == ((), [3, 5])


@pytest.mark.parametrize(
    ("model", "text"),
    [
        ({"input.weight": b"one", "output.weight": b"twO"}, "output.weight is not that of the checkpoint of step 5"),
        ({"input.weight": b"one"}, "lacks output.weight"),
        ({"input.weight": b"one", "output.weight": b"two", "x": b"x"}, "has tensors that the checkpoint has not: x"),
        (None, "cannot be read"),
    ],
)
def test_a_model_that_is_not_the_last_checkpoints_is_named(
    model: dict[str, bytes] | None, text: str, tmp_path: Path
) -> None:
    last = save(tmp_path, 5)
    file = tmp_path / "model.safetensors"
    if model is not None:
        file.write_bytes(safetensors(model))

    (found,) = texts(on_record(tmp_path, (5,), weights_sha256=last.weights_sha256, model_url=file.as_uri()))

    assert text in found


def test_weights_that_are_not_those_of_the_state_file_are_named(tmp_path: Path) -> None:
    save(tmp_path, 5)

    (found,) = texts(on_record(tmp_path, (5,), weights_sha256="f" * 64))

    assert "those that the state file names are ffffffffffff…" in found


def test_a_checkpoint_that_is_gone_is_a_problem_unless_the_run_goes_on_and_has_a_newer_one(tmp_path: Path) -> None:
    save(tmp_path, 5)

    ended = texts(on_record(tmp_path, (3, 5)))
    going_on = texts(on_record(tmp_path, (3, 5), state="running", ended_at=None))
    newest_gone = texts(on_record(tmp_path, (5, 7), state="running", ended_at=None))

    assert len(ended) == 1 and "checkpoint of step 3" in ended[0] and "missing" in ended[0]
    assert going_on == []
    assert len(newest_gone) == 1 and "checkpoint of step 7" in newest_gone[0]


def test_a_done_run_without_its_last_checkpoint_is_a_problem(tmp_path: Path) -> None:
    save(tmp_path, 3)

    assert texts(on_record(tmp_path, (3,))) == [
        "the run is done, but the state file names no checkpoint of its last step"
    ]


def test_what_is_no_safetensors_file_is_refused() -> None:
    with pytest.raises(ValueError, match="not a safetensors file"):
        tensors(bytearray(b"nothing of the kind"))


def test_layers_computed_again_are_told_apart_by_parameters_and_by_optimizer_state(tmp_path: Path) -> None:
    manifest = save(tmp_path, 3)
    first, second = manifest.layers

    def compared(*computed: LayerSaved) -> tuple[Verdict, str]:
        found = compare_checkpoint(manifest, computed)
        return found.verdict, found.detail

    assert compared(first, second) == (Verdict.EQUAL, "")
    assert compared(first, replace(second, parameters_sha256="0", file_sha256="0")) == (
        Verdict.DIFFERS,
        "layer output has other parameters",
    )
    assert compared(replace(first, file_sha256="0"), second)[1] == "layer input has another optimizer state"
    assert compared(first)[1] == "it has 2 layers, the recipe 1"
    assert compare_final(3, manifest.weights_sha256, (first, second)).verdict is Verdict.EQUAL
    assert compare_final(3, manifest.weights_sha256, (second, first)).verdict is Verdict.DIFFERS
