"""The digest of a recipe's file."""

import hashlib
from pathlib import Path

from bamboo_cli.recipe_file import recipe_digest, recipe_file


def test_the_digest_is_that_of_the_file_whatever_function_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("def tiny(): ...\n")

    assert recipe_digest(str(path)) == recipe_digest(f"{path}:tiny") == hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_ready_recipe_has_a_file_too_and_what_is_not_there_has_no_digest() -> None:
    found = recipe_file("gpt2")

    assert found is not None and found.name == "gpt2.py"
    assert recipe_digest("gpt2") == hashlib.sha256(found.read_bytes()).hexdigest()
    assert (recipe_digest("no-such-recipe"), recipe_digest("/nowhere/recipe.py")) == ("", "")
