"""The loss of a checkpoint on data that nobody trained on."""

from dataclasses import replace
from pathlib import Path

import bamboo_templates
import pytest
import torch
from bamboo_trainer.device import CPU
from bamboo_trainer.evaluate import choose_data, evaluate, load_modules
from bamboo_trainer.export_order import TRAINING_DATA, EvaluationOrder
from bamboo_trainer.manifest import read_manifest
from bamboo_trainer.models import gpt2, mlp
from bamboo_trainer.recipe import RecipeError, load_recipe

from tests.trainer.saved import saved_run


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory):
    recipe = mlp.recipe(num_samples=256, num_held_out=70)
    return recipe, saved_run(tmp_path_factory.mktemp("mlp") / "checkpoints", recipe)


def order(spec, **changes) -> EvaluationOrder:
    return EvaluationOrder(**{"spec": spec, "step": 1, "num_batches": None, "batch_size": 16, "data": None} | changes)


def test_the_loss_is_the_mean_over_all_held_out_samples_without_dropout(trained) -> None:
    recipe, spec = trained
    modules = load_modules(spec.checkpoint_url, read_manifest(spec.checkpoint_url, 1), recipe, CPU)
    with torch.inference_mode():
        value, targets = recipe.held_out.batch(range(70))
        for module in modules:
            value = module(value)
        expected = float(recipe.loss(value, targets))

    found = evaluate(order(spec), recipe, CPU)

    assert found.loss == pytest.approx(expected, rel=1e-6), "also with a last batch that is not full"
    assert (found.num_samples, found.num_samples_there, found.num_tokens) == (70, 70, 0)
    assert evaluate(order(spec), recipe, CPU) == found
    assert evaluate(order(spec, num_batches=2), recipe, CPU).num_samples == 32
    assert evaluate(order(spec, data=TRAINING_DATA), recipe, CPU).num_samples == 256


def test_what_gpt2_holds_out_is_never_foretold_in_training(tmp_path: Path) -> None:
    """Given a text in which every byte says where it is."""
    (tmp_path / "text").write_bytes(bytes(range(256)))
    recipe = gpt2.recipe(context=5, text=str(tmp_path / "text"), held_out=0.2)

    trained_on = recipe.dataset.batch(range(len(recipe.dataset)))[1].flatten().tolist()
    held_out = recipe.held_out.batch(range(len(recipe.held_out)))[1].flatten().tolist()

    assert (len(recipe.dataset), len(recipe.held_out)) == (41, 10)
    assert not set(trained_on) & set(held_out)
    assert sorted(trained_on + held_out) == list(range(1, 256))


@pytest.mark.parametrize("held_out", [0.0, 0.001])
def test_a_text_that_is_too_short_for_it_is_all_trained_on(tmp_path: Path, held_out: float) -> None:
    (tmp_path / "text").write_bytes(bytes(range(256)))
    recipe = gpt2.recipe(context=5, text=str(tmp_path / "text"), held_out=held_out)

    assert (len(recipe.dataset), recipe.held_out) == (51, None)


def test_points_that_mlp_holds_out_are_others_of_the_same_kind() -> None:
    recipe = mlp.recipe(num_samples=512, num_held_out=512)
    trained_on, _ = recipe.dataset.batch(range(512))
    held_out, classes = recipe.held_out.batch(range(512))

    assert not {tuple(point) for point in trained_on.tolist()} & {tuple(point) for point in held_out.tolist()}
    hidden = torch.tanh(held_out @ recipe.dataset._first)
    assert torch.equal((hidden @ recipe.dataset._second).argmax(dim=1), classes)


def test_what_the_recipe_to_start_from_holds_out_is_never_trained_on() -> None:
    recipe = load_recipe(str(bamboo_templates.RECIPE), {})
    trained_on, _ = recipe.dataset.batch(range(len(recipe.dataset)))
    held_out, _ = recipe.held_out.batch(range(len(recipe.held_out)))

    assert len(held_out) == 500
    assert not {tuple(sample) for sample in trained_on.tolist()} & {tuple(sample) for sample in held_out.tolist()}


def test_other_data_are_opened_by_the_recipe(tmp_path: Path) -> None:
    recipe = gpt2.recipe(context=8)
    (tmp_path / "other.txt").write_text("other words than those in the training text")

    assert len(choose_data(recipe, str(tmp_path / "*.txt"))) == 5
    with pytest.raises(RecipeError, match="no file matches"):
        choose_data(recipe, str(tmp_path / "none.txt"))
    with pytest.raises(RecipeError, match="opens no other data"):
        choose_data(mlp.recipe(), "elsewhere")
    with pytest.raises(RecipeError, match="holds no data out"):
        choose_data(replace(recipe, held_out=None), None)
