import builtins
import importlib
import sys

import pytest
from bamboo_trainer.recipe import Recipe, RecipeError, load_recipe

RECIPE_FILE = """
from bamboo_trainer.models import mlp

def recipe(*, width: int = 32, depth: int = 3):
    return mlp.recipe(width=width, depth=depth)

def wide():
    return mlp.recipe(width=64)

def broken():
    raise OSError("the data set is not there")

def forgetful():
    mlp.recipe()

def demanding(*, data_path):
    return mlp.recipe()
"""


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "my_recipe.py"
    file.write_text(RECIPE_FILE)
    return str(file)


@pytest.mark.parametrize("name", ["gpt2", "mlp"])
def test_ready_recipes_load(name):
    recipe = load_recipe(name, {})
    assert isinstance(recipe, Recipe)
    assert len(recipe.layers) >= 4
    assert len(recipe.dataset) > 1000


def test_a_file_is_a_recipe_and_may_have_several(path):
    assert len(load_recipe(path, {"depth": 5}).layers) == 5
    assert load_recipe(f"{path}:wide", {}).layers[0].build().weight.shape[0] == 64


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("gtp2", {}, "no recipe 'gtp2'; did you mean 'gpt2'"),
        ("gpt2", {"contxt": 32}, "recipe gpt2 has no option 'contxt'; did you mean 'context'"),
        ("gpt2", {"size": "tinny"}, "no size 'tinny'; it has: tiny, small"),
        ("gpt2", {"text": "book.txt"}, "must be an absolute path"),
        ("gpt2", {"text": "/nowhere/*.txt"}, "no file matches text"),
        ("gpt2", {"context": 10**7}, "needs more than the context"),
        ("mlp", {"depth": 1}, "at least 2 layers"),
        ("mlp", {"num_samples": 0}, "data set is empty"),
        ("mlp", {"num_samples": "many"}, r"mlp\.py:\d+ raised TypeError"),
        ("/nowhere/recipe.py", {}, "no recipe file /nowhere/recipe.py"),
        ("{path}:reciep", {}, r"no function reciep\(\); did you mean 'recipe'"),
        ("{path}:broken", {}, r"my_recipe\.py:11 raised OSError: the data set is not there"),
        ("{path}:forgetful", {}, r"forgetful\(\) returned NoneType"),
        ("{path}:demanding", {}, "needs the option 'data_path'"),
    ],
)
def test_what_cannot_be_a_recipe_is_refused_with_what_to_do(name, options, message, path):
    with pytest.raises(RecipeError, match=message):
        load_recipe(name.format(path=path), options)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import not_there_at_all", "imports not_there_at_all, which is not installed"),
        ("def recipe(:", r"does not import: .*my_recipe\.py:1: SyntaxError"),
        ("1 / 0", r"does not import: .*my_recipe\.py:1: ZeroDivisionError"),
    ],
    ids=["missing module", "syntax", "raises"],
)
def test_a_file_that_does_not_import_is_told_with_its_line(path, text, message):
    with open(path, "w") as file:
        file.write(text)
    with pytest.raises(RecipeError, match=message):
        load_recipe(path, {})


def test_a_missing_extra_is_told_with_the_command_that_installs_it(monkeypatch):
    real_import = builtins.__import__

    def without_torch(name, *args, **kwargs):
        if name == "torch" or name.startswith("torch."):
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
        return real_import(name, *args, **kwargs)

    for name in [n for n in sys.modules if n.startswith("bamboo_trainer.models.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without_torch)
    monkeypatch.setattr(importlib, "import_module", lambda name: real_import(name, fromlist=["recipe"]))

    with pytest.raises(
        RecipeError, match=r"needs torch, which is not installed; run: pip install 'bamboo-train\[train\]'"
    ):
        load_recipe("mlp", {})


def test_two_layers_of_one_name_are_refused(tmp_path):
    file = tmp_path / "twice.py"
    file.write_text(
        "from dataclasses import replace\n"
        "from bamboo_trainer.models import mlp\n"
        "def recipe():\n"
        "    made = mlp.recipe()\n"
        "    return replace(made, layers=made.layers + made.layers)\n"
    )
    with pytest.raises(RecipeError, match="two layers named 'input'"):
        load_recipe(str(file), {})


def test_a_recipe_whose_file_is_elsewhere_is_loaded_from_what_it_says(path):
    elsewhere = "/somewhere/else/my_recipe.py"

    with pytest.raises(RecipeError, match="no recipe file"):
        load_recipe(elsewhere, {})
    recipe = load_recipe(f"{elsewhere}:wide", {}, RECIPE_FILE)
    assert recipe.layers[0].build().weight.shape[0] == 64
    with pytest.raises(RecipeError, match=r"my_recipe\.py:1: SyntaxError"):
        load_recipe(elsewhere, {}, "import (")
