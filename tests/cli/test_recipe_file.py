"""The digest of a recipe's file."""

import hashlib
from pathlib import Path

import pytest

from bamboo_cli.errors import UsageError
from bamboo_cli.recipe_file import recipe_digest, recipe_file, recipe_source


def test_the_digest_is_that_of_the_file_whatever_function_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("def tiny(): ...\n")

    assert recipe_digest(str(path)) == recipe_digest(f"{path}:tiny") == hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_ready_recipe_has_a_file_too_and_what_is_not_there_has_no_digest() -> None:
    found = recipe_file("gpt2")

    assert found is not None and found.name == "gpt2.py"
    assert recipe_digest("gpt2") == hashlib.sha256(found.read_bytes()).hexdigest()
    assert (recipe_digest("no-such-recipe"), recipe_digest("/nowhere/recipe.py")) == ("", "")


def test_a_file_of_the_users_travels_to_other_machines_only(tmp_path: Path) -> None:
    file = tmp_path / "my.py"
    file.write_text("x = 1\n")

    assert recipe_source(f"{file}:other", "aws") == "x = 1\n"
    assert recipe_source(str(file), "local") == recipe_source("gpt2", "aws") == ""
    with pytest.raises(UsageError, match="cannot be read"):
        recipe_source(str(tmp_path / "gone.py"), "aws")
