"""The weights of a run, as its newest checkpoint has them, for ``bamboo export`` and ``bamboo eval``."""

import math
import os
from dataclasses import dataclass
from pathlib import Path

from bamboo_trainer import storage
from bamboo_trainer.control import TrainingSpec
from bamboo_trainer.export_order import Evaluated, EvaluationOrder, Exported, ExportOrder
from pydantic import TypeAdapter

from bamboo_cli import output, records
from bamboo_cli.coordinator.reader import read_runs
from bamboo_cli.coordinator.status import RunStatus
from bamboo_cli.errors import StateError, UsageError
from bamboo_cli.recipe_file import recipe_digest
from bamboo_cli.trainer_process import ask

DEFAULT_BATCH = 16

_SPEC: TypeAdapter[TrainingSpec] = TypeAdapter(TrainingSpec)


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    run: RunStatus
    spec: TrainingSpec
    step: int
    """Of the checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    run_id: str
    step: int
    url: str
    files: tuple[str, ...]
    num_parameters: int
    weights_sha256: str
    architecture: str
    """Class of ``transformers`` that loads it; empty: the recipe does not say how one would."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    run_id: str
    step: int
    data: str
    loss: float
    perplexity: float | None
    """None: the recipe does not count tokens."""
    num_samples: int
    num_samples_there: int
    num_tokens: int


def find(run_id: str | None, cluster: str | None, step: int | None) -> Saved:
    """The run, or the newest; the checkpoint of ``step``, or the newest. Raises StateError, UsageError."""
    run = _find_run(run_id, cluster)
    there = run.checkpoint_steps
    if not there:
        raise StateError(
            f"run {run.run_id} has no complete checkpoint",
            next_step="`bamboo events` tells when one is saved; `checkpoint.every` in the job says how often.",
        )
    if step is not None and step not in there:
        raise UsageError(
            f"run {run.run_id} has no complete checkpoint of step {step}",
            next_step=f"There are: {', '.join(map(str, there))}. `checkpoint.keep` in the job says how many are kept.",
        )
    spec = _SPEC.validate_python(run.spec)
    if not spec.recipe_source and run.recipe_sha256 not in (None, recipe_digest(spec.recipe)):
        output.note(f"the recipe {spec.recipe} has changed since the run began; it is taken as it is now")
    return Saved(run=run, spec=spec, step=there[-1] if step is None else step)


def _find_run(run_id: str | None, cluster: str | None) -> RunStatus:
    path = records.state_file(cluster) if run_id is None else records.find_run(run_id, cluster)
    runs = read_runs(path)
    if run_id is not None:
        return next(run for run in runs if run.run_id == run_id)
    if not runs:
        raise StateError(f"cluster {path.parent.name} has had no run", next_step="Start one with `bamboo train JOB`.")
    return runs[-1]


def export(saved: Saved, target: str) -> Export:
    """``target``: a folder or any fsspec URL. Raises BambooError."""
    url = _target_url(target)
    order = ExportOrder(spec=saved.spec, step=saved.step, target_url=url)
    found = ask("export", order, Exported, what="the model to be written")
    return Export(
        run_id=saved.run.run_id,
        step=saved.step,
        url=url,
        files=found.files,
        num_parameters=found.num_parameters,
        weights_sha256=found.weights_sha256,
        architecture=found.architecture,
    )


def _target_url(target: str) -> str:
    """Raises UsageError."""
    scheme, is_url, place = target.partition("://")
    if not (place.strip("/") if is_url and scheme != "file" else target.strip()):  # a variable that is not set, say
        raise UsageError(f"--to {target!r} names no place", next_step="Name a folder, or a bucket and a folder in it.")
    if (meant := storage.meant_url(target)) is not None:
        raise UsageError(
            f"--to {target!r} is no URL; did you mean {meant}?",
            next_step=f"A folder of that name here would be ./{target}",
        )
    url = target if is_url else os.path.abspath(os.path.expanduser(target))
    _check_utf8("--to", url)
    return url


def _check_utf8(option: str, text: str) -> None:
    """Raises UsageError."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{option} {text!r} is not UTF-8", next_step="Name another, or rename it.") from None


def evaluate(saved: Saved, *, data: str | None, num_batches: int | None, batch_size: int | None) -> Evaluation:
    """Raises BambooError."""
    if data is not None:
        data = str(Path(data).absolute()) if Path(data).exists() else data
        _check_utf8("--data", data)
    order = EvaluationOrder(
        spec=saved.spec,
        step=saved.step,
        data=data,
        num_batches=num_batches,
        batch_size=batch_size or max(saved.spec.microbatch_size, DEFAULT_BATCH),
    )
    found = ask("evaluate", order, Evaluated, what="the checkpoint to be evaluated")
    return Evaluation(
        run_id=saved.run.run_id,
        step=saved.step,
        data="held out" if data is None else data,
        loss=found.loss,
        perplexity=perplexity(found),
        num_samples=found.num_samples,
        num_samples_there=found.num_samples_there,
        num_tokens=found.num_tokens,
    )


def perplexity(found: Evaluated) -> float | None:
    if not found.num_tokens:
        return None
    return math.exp(found.loss) if found.loss < 700 else math.inf
