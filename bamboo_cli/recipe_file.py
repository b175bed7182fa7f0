"""The file that a recipe is written in, and its digest: how one knows later that it has not changed."""

import hashlib
import importlib.util
from pathlib import Path

from bamboo_cli.errors import UsageError

READY_PACKAGE = "bamboo_trainer.models"


def recipe_file(recipe: str) -> Path | None:
    """``recipe``: as in the job. None where there is no such recipe. Imports nothing of it."""
    name, _, _ = recipe.partition(":")
    if name.endswith(".py"):
        return Path(name)
    found = importlib.util.find_spec(f"{READY_PACKAGE}.{name}")
    return Path(found.origin) if found is not None and found.origin is not None else None


def recipe_source(recipe: str, cloud: str) -> str:
    """What a recipe file of the user's says, where the nodes are other machines; not what it imports. Raises UsageError
    when it cannot be read.
    """
    name, _, _ = recipe.partition(":")
    if cloud == "local" or not name.endswith(".py"):
        return ""
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the recipe {name} cannot be read: {error}", next_step="Is it a Python file?") from error


def recipe_digest(recipe: str) -> str:
    """SHA-256 of the file alone, not of what it imports; empty where it cannot be read."""
    path = recipe_file(recipe)
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() if path is not None else ""
    except OSError:
        return ""
