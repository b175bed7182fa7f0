"""Trying the recipe before anything is rented, in a process of its own: it is the user's code, and it imports torch."""

import importlib.util
import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from bamboo_trainer.control import encode

from bamboo_cli import output
from bamboo_cli.config import JobConfig
from bamboo_cli.errors import BambooError, UsageError
from bamboo_cli.jobs import run_spec

TIMEOUT_S = 600.0
NEEDED = ("torch", "safetensors", "numpy")
NOT_A_RECIPE = 1
"""Exit code of ``bamboo_trainer.check`` when the recipe is wrong; its standard error says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What the recipe describes."""

    layer_names: tuple[str, ...]
    num_parameters: int
    num_samples: int


def missing_packages() -> list[str]:
    """Of the extra that training on this machine needs."""
    return [name for name in NEEDED if importlib.util.find_spec(name) is None]


def check_recipe(job: JobConfig) -> Model:
    """Raises UsageError when the recipe cannot be trained as the job says, BambooError when it cannot be tried."""
    missing = missing_packages()
    if missing:
        raise BambooError(
            f"training on this machine needs {', '.join(missing)}, which is not installed; nothing was rented",
            next_step="Install it with: pip install 'bamboo-train[train]'",
        )
    model = _model(_try(job))
    if job.stages > len(model.layer_names):
        raise UsageError(
            f"recipe {job.recipe} has {len(model.layer_names)} layers, which cannot be cut into {job.stages} stages",
            next_step=f"Set stages to at most {len(model.layer_names)}. Nothing was rented.",
        )
    return model


def _try(job: JobConfig) -> dict[str, Any]:
    """The verdict of ``bamboo_trainer.check``."""
    spec = encode(run_spec(job, "check", "memory://check").training)
    with output.waiting(f"the recipe {job.recipe} to be tried"):
        try:
            tried = subprocess.run(
                [sys.executable, "-m", "bamboo_trainer.check"], input=spec, capture_output=True, timeout=TIMEOUT_S
            )
        except subprocess.TimeoutExpired:
            raise BambooError(
                f"recipe {job.recipe} was still busy after {TIMEOUT_S:.0f} s; nothing was rented",
                next_step="A recipe should only describe the layers and open the data.",
            ) from None
    said = tried.stderr.decode(errors="replace").strip()
    if tried.returncode == NOT_A_RECIPE:
        raise UsageError(said, next_step="Nothing was rented.")
    if tried.returncode != 0:
        raise BambooError(
            f"trying recipe {job.recipe} ended with exit code {tried.returncode}; nothing was rented\n{said}"
        )
    verdict: dict[str, Any] = json.loads(tried.stdout.splitlines()[-1])
    return verdict


def _model(verdict: dict[str, Any]) -> Model:
    return Model(
        layer_names=tuple(layer["name"] for layer in verdict["layers"]),
        num_parameters=verdict["num_parameters"],
        num_samples=verdict["num_samples"],
    )
