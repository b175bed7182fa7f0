"""Trying the recipe before anything is rented, in a process of its own: it is the user's code, and it imports torch."""

import importlib.util
import json
import subprocess
import time
from dataclasses import dataclass, fields
from typing import Any

from bamboo_trainer.control import encode

from bamboo_cli import check_process, output
from bamboo_cli.config import JobConfig
from bamboo_cli.errors import BambooError, UsageError
from bamboo_cli.jobs import run_spec

TIMEOUT_S = 600.0
LOOK_S = 0.5
NEEDED = ("torch", "safetensors", "numpy")
NOT_A_RECIPE = 1
"""Exit code of ``bamboo_trainer.check`` when the recipe is wrong; its standard error says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSize:
    """Bytes; of activations, for one microbatch."""

    parameter_bytes: int
    activation_bytes: int
    kept_bytes: int
    optimizer_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What the recipe describes."""

    layer_names: tuple[str, ...]
    num_parameters: int
    num_samples: int
    layer_sizes: tuple[LayerSize, ...]


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
    if job.stages != "auto" and job.stages > len(model.layer_names):
        raise UsageError(
            f"recipe {job.recipe} has {len(model.layer_names)} layers, which cannot be cut into {job.stages} stages",
            next_step=f"Set stages to at most {len(model.layer_names)}. Nothing was rented.",
        )
    return model


def _try(job: JobConfig) -> dict[str, Any]:
    """The verdict of ``bamboo_trainer.check``."""
    spec = encode(run_spec(job, "check", "memory://check").training)
    returncode, stdout, stderr = _run_check(job, spec)
    said = stderr.decode(errors="replace").strip()
    if returncode == NOT_A_RECIPE:
        raise UsageError(said, next_step="Nothing was rented.")
    if returncode != 0:
        raise BambooError(f"trying recipe {job.recipe} ended with exit code {returncode}; nothing was rented\n{said}")
    verdict: dict[str, Any] = json.loads(stdout.splitlines()[-1])
    return verdict


def _run_check(job: JobConfig, spec: bytes) -> tuple[int, bytes, bytes]:
    """Exit code, standard output and error. The process does not outlive this call. Raises BambooError: too slow."""
    deadline = time.monotonic() + TIMEOUT_S
    with output.waiting(f"the recipe {job.recipe} to be tried") as saw, check_process.begin() as check:
        while time.monotonic() < deadline:
            try:
                return check.communicate(spec, timeout_s=LOOK_S)
            except subprocess.TimeoutExpired:  # asked again, without input, it goes on where it was
                spec = b""
                saw("")
    raise BambooError(
        f"recipe {job.recipe} was still busy after {TIMEOUT_S:.0f} s; nothing was rented",
        next_step="A recipe should only describe the layers and open the data.",
    )


def _model(verdict: dict[str, Any]) -> Model:
    return Model(
        layer_names=tuple(layer["name"] for layer in verdict["layers"]),
        num_parameters=verdict["num_parameters"],
        num_samples=verdict["num_samples"],
        layer_sizes=tuple(
            LayerSize(**{field.name: layer[field.name] for field in fields(LayerSize)}) for layer in verdict["layers"]
        ),
    )
