"""The file that a recipe is written in, and its digest: how one knows later that it has not changed."""

import hashlib
import importlib.util
from pathlib import Path

READY_PACKAGE = "bamboo_trainer.models"


def recipe_file(recipe: str) -> Path | None:
    """``recipe``: as in the job. None where there is no such recipe. Imports nothing of it."""
    name, _, _ = recipe.partition(":")
    if name.endswith(".py"):
        return Path(name)
    found = importlib.util.find_spec(f"{READY_PACKAGE}.{name}")
    return Path(found.origin) if found is not None and found.origin is not None else None


def recipe_digest(recipe: str) -> str:
    """SHA-256 of the file alone, not of what it imports; empty where it cannot be read."""
    path = recipe_file(recipe)
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() if path is not None else ""
    except OSError:
        return ""
