import json
import subprocess
import sys
from dataclasses import replace
from functools import partial

import pytest
import torch
from bamboo_trainer.check import check_recipe
from bamboo_trainer.control import encode
from bamboo_trainer.models import gpt2, mlp
from bamboo_trainer.profile import keep_track, measure_layers
from bamboo_trainer.recipe import LayerFactory, RecipeError
from bamboo_trainer.stage import StageGraph
from torch import nn

from tests.trainer.torch_world import make_spec


def test_every_layer_is_measured_under_its_name():
    recipe = gpt2.recipe(context=16)
    costs = measure_layers(make_spec(microbatch_size=2), recipe)
    assert [cost.name for cost in costs] == [layer.name for layer in recipe.layers]
    assert all(cost.forward_s > 0 and cost.backward_s > 0 for cost in costs)
    assert costs[0].parameter_bytes == (256 + 16) * 128 * 4
    assert costs[3].activation_bytes == 2 * 16 * 128 * 4


def test_emulated_device_time_is_what_is_measured():
    recipe = mlp.recipe(depth=3, sleep_forward_s=0.002, sleep_backward_s=0.004)
    for cost in measure_layers(make_spec(), recipe):
        assert 0.002 <= cost.forward_s < 0.02
        assert 0.004 <= cost.backward_s < 0.04


def test_layers_that_are_built_alike_are_measured_once():
    recipe = gpt2.recipe(context=16)
    built = []

    def count(*args):
        built.append(args)
        return gpt2.Block(*args)

    block = partial(count, 128, 4, 0.1, 6)
    layers = [x._replace(build=block) if x.name.startswith("block") else x for x in recipe.layers]
    costs = measure_layers(make_spec(), replace(recipe, layers=tuple(layers)))
    assert len(built) == 1
    assert len({cost.forward_s for cost in costs[1:-1]}) == 1


class Doubled(nn.Module):
    def forward(self, x):
        return [x, x]


def with_layer(build, loss=None):
    recipe = mlp.recipe(depth=4)
    layers = (*recipe.layers[:2], LayerFactory("odd", build), *recipe.layers[3:])
    return replace(recipe, layers=layers, loss=loss or recipe.loss)


BAD = [
    (
        with_layer(partial(nn.Linear, 33, 32)),
        r"layer odd does not take what layer block\.0 gives it, float32 of shape \(4, 32\): RuntimeError",
    ),
    (with_layer(partial(nn.Linear, 32, 31)), r"layer output does not take what layer odd gives it"),
    (with_layer(partial(nn.BatchNorm1d, 32)), "layer odd changes a buffer in forward"),
    (with_layer(Doubled), "layer odd gives .* it must give a tensor or a tuple of tensors"),
    (with_layer(partial(nn.Linear, 32)), "layer odd does not build: TypeError"),
    (
        with_layer(partial(nn.Linear, 32, 32), loss=nn.functional.mse_loss),
        r"the loss does not take the output of layer output, float32 of shape \(4, 8\), and the targets, int64",
    ),
    (
        with_layer(partial(nn.Linear, 32, 32), loss=partial(nn.functional.cross_entropy, reduction="none")),
        r"the loss gives float32 of shape \(4,\); it must give the mean",
    ),
]


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize(("recipe", "message"), BAD)
def test_layers_that_do_not_fit_are_named_by_the_profile(recipe, message):
    with pytest.raises(RecipeError, match=message):
        measure_layers(make_spec(), recipe)


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize(("recipe", "message"), BAD)
def test_layers_that_do_not_fit_are_named_by_the_check(recipe, message, monkeypatch):
    monkeypatch.setattr("bamboo_trainer.check.load_recipe", lambda name, options: recipe)
    verdict = check_recipe(make_spec())
    assert len(verdict.errors) == 1
    with pytest.raises(RecipeError, match=message):
        raise RecipeError(verdict.errors[0])


def test_a_module_made_outside_its_factory_is_refused(monkeypatch):
    made = nn.Linear(64, 64)
    monkeypatch.setattr("bamboo_trainer.check.load_recipe", lambda name, options: with_layer(lambda: made))
    (error,) = check_recipe(make_spec()).errors
    assert error.startswith("layer odd gives the same parameters each time it is built: make its module inside")


class NeedsNumbers(nn.Module):
    """Cannot run on the meta device."""

    def forward(self, x):
        return x * float(x.abs().max() + 1)


def test_a_layer_that_meta_cannot_run_is_tried_for_real(monkeypatch):
    monkeypatch.setattr("bamboo_trainer.check.load_recipe", lambda name, options: with_layer(NeedsNumbers))
    assert check_recipe(make_spec()).errors == ()


def test_the_check_needs_no_memory_of_the_model():
    """1.5 billion parameters; the real ones would take 6 GB and a minute."""
    verdict = check_recipe(
        make_spec(recipe="gpt2", recipe_options={"size": "xl"}, microbatch_size=1, num_microbatches=1)
    )
    assert verdict.errors == ()
    assert 1.4e9 < verdict.num_parameters < 1.6e9
    assert verdict.tokens_per_sample == 1024


def test_the_verdict_counts_tied_parameters_once():
    verdict = check_recipe(make_spec(recipe="gpt2"))
    built = sum(p.numel() for layer in gpt2.recipe().layers for p in layer.build().parameters())
    assert sum(layer.num_parameters for layer in verdict.layers) == built
    assert verdict.num_parameters == built - 256 * 128


def run_check(spec_json):
    return subprocess.run(
        [sys.executable, "-m", "bamboo_trainer.check"], input=spec_json, capture_output=True, timeout=60
    )


def test_the_command_prints_a_verdict_and_says_by_exit_code_whose_fault_it_is():
    good = run_check(encode(make_spec()))
    assert (good.returncode, good.stderr) == (0, b"")
    assert json.loads(good.stdout)["layers"][0]["name"] == "input"

    wrong = run_check(encode(make_spec(recipe_options={"widht": 3})))
    assert wrong.returncode == 1
    assert b"did you mean 'width'?" in wrong.stderr
    assert json.loads(wrong.stdout)["errors"]

    assert run_check(b"{}").returncode == 3


def test_what_a_forward_keeps_is_measured_and_told_beforehand_alike():
    spec, recipe = make_spec(recipe="gpt2"), gpt2.recipe()
    measured = measure_layers(spec, recipe)
    told = check_recipe(spec).layers
    assert [cost.kept_bytes for cost in measured] == [layer.kept_bytes for layer in told]
    assert [cost.activation_bytes for cost in measured] == [layer.activation_bytes for layer in told]
    assert [cost.optimizer_bytes for cost in measured] == [layer.optimizer_bytes for layer in told]


def test_kept_is_the_output_and_what_the_backward_needs_parameters_aside():
    module = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
    value = torch.ones(3, 8)
    graph = StageGraph(value)

    def run():
        graph.advance(module, needs_input_gradient=False)
        return graph

    _, kept_bytes = keep_track(run, module)
    assert kept_bytes == 4 * (3 * 8 + 3 * 16), "the linear layer's input, and the output, which ReLU needs as well"


def test_adam_keeps_two_moments_and_an_sgd_without_momentum_nothing():
    spec, recipe = make_spec(recipe="mlp"), mlp.recipe()
    (first, *_) = measure_layers(spec, recipe)
    assert 2 * first.parameter_bytes <= first.optimizer_bytes <= 2 * first.parameter_bytes + 100
    assert first.update_s > 0
    plain = replace(recipe, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    assert {cost.optimizer_bytes for cost in measure_layers(spec, plain)} == {0}
