"""A checkpoint as others load it: GPT-2 by ``transformers``, with equal logits; other recipes under their own names."""

import json
from pathlib import Path

import pytest
import safetensors.torch
import torch
from bamboo_trainer.device import CPU
from bamboo_trainer.evaluate import load_modules
from bamboo_trainer.export import export
from bamboo_trainer.export_order import Exported, ExportOrder
from bamboo_trainer.manifest import CheckpointError, read_manifest
from bamboo_trainer.models import gpt2, mlp

from tests.trainer.saved import saved_run

TEXT = "Bäume — 竹 grow fast.\n"
LOGITS_TOLERANCE = 2e-6
"""The same bits where it was tried; elsewhere a kernel may add up in another order."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("gpt2")
    recipe = gpt2.recipe(context=32)
    spec = saved_run(folder / "checkpoints", recipe)
    exported = export(ExportOrder(spec=spec, step=1, target_url=str(folder / "model")), recipe)
    return recipe, spec, exported, folder / "model"


def test_transformers_loads_gpt2_and_computes_the_same_logits(trained, monkeypatch: pytest.MonkeyPatch) -> None:
    transformers = pytest.importorskip("transformers")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    recipe, spec, exported, folder = trained
    modules = load_modules(spec.checkpoint_url, read_manifest(spec.checkpoint_url, 1), recipe, CPU)
    tokens, _ = recipe.held_out.batch(range(3))

    model, told = transformers.GPT2LMHeadModel.from_pretrained(str(folder), output_loading_info=True)
    with torch.inference_mode():
        ours = tokens
        for module in modules:
            ours = module(ours)
        theirs = model.eval()(tokens).logits

    assert not told["missing_keys"] and not told["unexpected_keys"] and not told["mismatched_keys"]
    assert ours.std() > 0.05, "trained enough to have something to compare"
    torch.testing.assert_close(theirs, ours, rtol=0.0, atol=LOGITS_TOLERANCE)
    assert exported.architecture == type(model).__name__
    assert exported.num_parameters == sum(parameter.numel() for parameter in model.parameters())


def test_the_tokenizer_has_a_token_for_each_byte(trained) -> None:
    transformers = pytest.importorskip("transformers")
    _, _, _, folder = trained

    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder))

    assert tokenizer(TEXT)["input_ids"] == list(TEXT.encode())
    assert tokenizer.decode(list(TEXT.encode())) == TEXT
    assert len(tokenizer) == 256


def test_it_says_where_it_comes_from(trained) -> None:
    _, spec, exported, folder = trained

    origin = json.loads((folder / "bamboo.json").read_text())

    assert (origin["run_id"], origin["step"], origin["recipe"]) == (spec.run_id, 1, spec.recipe)
    assert origin["weights_sha256"] == exported.weights_sha256 == read_manifest(spec.checkpoint_url, 1).weights_sha256
    assert sorted(exported.files) == sorted(path.name for path in folder.iterdir())


def test_a_recipe_that_transformers_does_not_know_keeps_its_own_names(tmp_path: Path) -> None:
    recipe = mlp.recipe()
    spec = saved_run(tmp_path / "checkpoints", recipe)

    exported: Exported = export(ExportOrder(spec=spec, step=1, target_url=str(tmp_path / "model")), recipe)

    tensors = safetensors.torch.load_file(tmp_path / "model" / "model.safetensors")
    modules = load_modules(spec.checkpoint_url, read_manifest(spec.checkpoint_url, 1), recipe, CPU)
    expected = {
        f"{layer.name}.{name}": parameter
        for layer, module in zip(recipe.layers, modules, strict=True)
        for name, parameter in module.named_parameters()
    }
    assert set(tensors) == set(expected)
    assert all(torch.equal(tensors[name], parameter) for name, parameter in expected.items())
    assert (exported.architecture, exported.files) == ("", ("bamboo.json", "model.safetensors"))


def test_a_checkpoint_of_another_recipe_is_refused(trained, tmp_path: Path) -> None:
    _, spec, _, _ = trained
    for other in (gpt2.recipe(context=64), mlp.recipe()):
        with pytest.raises(CheckpointError):
            export(ExportOrder(spec=spec, step=1, target_url=str(tmp_path / "model")), other)
        assert not (tmp_path / "model" / "model.safetensors").exists()


def test_an_export_clears_up_after_one_that_was_killed(trained, tmp_path: Path) -> None:
    recipe, spec, *_ = trained
    (tmp_path / ".model.safetensors.123-0a1b2c3d.tmp").write_bytes(b"half a model")

    exported = export(ExportOrder(spec=spec, step=1, target_url=str(tmp_path)), recipe)

    assert {path.name for path in tmp_path.iterdir()} == set(exported.files)
