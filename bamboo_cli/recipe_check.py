"""Trying the recipe before anything is rented, in a process of its own: it is the user's code, and it imports torch."""

import importlib.util
import subprocess
import sys
from typing import TYPE_CHECKING

from bamboo_cli import output
from bamboo_cli.errors import BambooError, UsageError

if TYPE_CHECKING:
    from bamboo_cli.config import JobConfig

TIMEOUT_S = 600.0
NEEDED = ("torch", "safetensors", "numpy")
NOT_A_RECIPE = 1
"""Exit code of ``bamboo_trainer.check`` when the recipe is wrong; its standard error says why."""


def check_recipe(job: "JobConfig") -> None:
    """Raises UsageError when the recipe cannot be trained as the job says, BambooError when it cannot be tried."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise BambooError(
            f"training on this machine needs {', '.join(missing)}, which is not installed; nothing was rented",
            next_step="Install it with: pip install 'bamboo-train[train]'",
        )
    from bamboo_trainer.control import encode

    from bamboo_cli.jobs import run_spec

    spec = encode(run_spec(job, "check", "memory://check").training)
    with output.waiting(f"the recipe {job.recipe} to be tried"):
        try:
            tried = subprocess.run(
                [sys.executable, "-m", "bamboo_trainer.check"], input=spec, capture_output=True, timeout=TIMEOUT_S
            )
        except subprocess.TimeoutExpired:
            raise BambooError(
                f"recipe {job.recipe} was still busy after {TIMEOUT_S:.0f} s; nothing was rented",
                next_step="A recipe should only describe the layers and open the data; see docs/recipes.md.",
            ) from None
    said = tried.stderr.decode(errors="replace").strip()
    if tried.returncode == NOT_A_RECIPE:
        raise UsageError(said, next_step="Nothing was rented.")
    if tried.returncode != 0:
        raise BambooError(
            f"trying recipe {job.recipe} ended with exit code {tried.returncode}; nothing was rented\n{said}"
        )
