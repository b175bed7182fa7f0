"""Which checkpoints there are. No torch here: the coordinator writes the marker and chooses what to restore.

A checkpoint is a folder ``<url>/step-00000010`` with one file per layer, ``layer-0003.safetensors``, and, written last,
``manifest.json``. Without a valid manifest and every file that it names, at its full length, the checkpoint is
invisible. Files are keyed by layer, so a checkpoint loads under any number of pipelines and any cut into stages.
"""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from pydantic import TypeAdapter, ValidationError

from bamboo_trainer import storage
from bamboo_trainer.control import LayerSaved

FORMAT_VERSION = 1
MANIFEST_FILE = "manifest.json"


class CheckpointError(Exception):
    """A checkpoint is missing, truncated, corrupt, foreign, or could not be written. Says which, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What the bits of a run follow from, beside its seed: who goes on from its checkpoint must have the same."""

    recipe: str
    recipe_sha256: str
    """Of the recipe's file; empty: not known."""
    recipe_options: dict[str, Any]
    num_microbatches: int
    microbatch_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The marker of a complete checkpoint: parameters and optimizer state after ``step`` was applied."""

    format_version: int = FORMAT_VERSION
    run_id: str
    step: int
    seed: int
    num_layers: int
    layers: tuple[LayerSaved, ...]
    """In layer order."""
    weights_sha256: str
    created_at: str
    """ISO 8601, UTC."""
    origin: Origin | None = None
    """None: written by a Bamboo that did not keep it."""


_MANIFEST: TypeAdapter[Manifest] = TypeAdapter(Manifest)


def step_folder(step: int) -> str:
    return f"step-{step:08d}"


def layer_file(layer: int) -> str:
    return f"layer-{layer:04d}.safetensors"


def layer_url(url: str, step: int, layer: int) -> str:
    return storage.join(url, step_folder(step), layer_file(layer))


def weights_digest(parameters_sha256: Iterable[str]) -> str:
    """Of all parameters: SHA-256 over the layers' own digests (hex), in layer order, a newline after each."""
    return hashlib.sha256("".join(f"{digest}\n" for digest in parameters_sha256).encode()).hexdigest()


def make_manifest(
    *,
    run_id: str,
    step: int,
    seed: int,
    layers: Iterable[LayerSaved],
    created_at: str,
    origin: Origin | None = None,
) -> Manifest:
    """``layers``: all of them, each once, in any order."""
    ordered = tuple(sorted(layers, key=lambda saved: saved.layer))
    return Manifest(
        run_id=run_id,
        step=step,
        seed=seed,
        num_layers=len(ordered),
        layers=ordered,
        weights_sha256=weights_digest(saved.parameters_sha256 for saved in ordered),
        created_at=created_at,
        origin=origin,
    )


def write_manifest(url: str, manifest: Manifest) -> None:
    """Make the checkpoint visible; its layer files are durable. Raises CheckpointError; older ones stay as they are."""
    place = storage.join(url, step_folder(manifest.step), MANIFEST_FILE)
    try:
        storage.write_durably(place, [_MANIFEST.dump_json(manifest, indent=1)])
    except OSError as error:
        raise CheckpointError(
            f"checkpoint of step {manifest.step}: cannot write {place}: {error}; older checkpoints are untouched"
        ) from error


def read_manifest(url: str, step: int, run_id: str | None = None) -> Manifest:
    """The manifest of a complete checkpoint. ``run_id``: refuse that of another run. Raises CheckpointError."""
    try:
        return _read(url, step, run_id)
    except OSError as error:
        raise CheckpointError(f"checkpoint of step {step} in {url} cannot be read: {error}") from error


def _read(url: str, step: int, run_id: str | None) -> Manifest:
    """Raises CheckpointError when there is no such complete checkpoint, OSError when one cannot look."""
    place = storage.join(url, step_folder(step), MANIFEST_FILE)
    what = f"checkpoint of step {step} in {url}"
    try:
        data = storage.read(place)
    except FileNotFoundError as error:
        raise CheckpointError(f"{what} is missing or incomplete: no {MANIFEST_FILE}") from error
    try:
        manifest = _MANIFEST.validate_json(bytes(data))
    except ValidationError as error:
        first = error.errors()[0]
        raise CheckpointError(f"{what} is truncated or foreign: {MANIFEST_FILE}: {first['msg']}") from error
    _check(manifest, step, what)
    if run_id is not None and manifest.run_id != run_id:
        raise CheckpointError(f"{what} is foreign: it belongs to run {manifest.run_id}, not to {run_id}")
    _check_files(manifest, url, what)
    return manifest


def copy_checkpoint(source_url: str, step: int, source_run_id: str, url: str, run_id: str) -> None:
    """Make the checkpoint one of another run's own, in its folder; what is there already stays. The source does too.

    Every layer file is checked on the way. Raises CheckpointError.
    """
    if _readable(url, step, run_id):
        return
    found = read_manifest(source_url, step, source_run_id)
    for saved in found.layers:
        place = storage.join(source_url, step_folder(step), saved.file)
        try:
            data = storage.read(place)
            if hashlib.sha256(data).hexdigest() != saved.file_sha256:
                raise CheckpointError(f"{place} is corrupt: its SHA-256 is not the one in the manifest")
            storage.write_durably(storage.join(url, step_folder(step), saved.file), [data])
        except OSError as error:
            raise CheckpointError(f"cannot copy {place} to {url}: {error}") from error
    write_manifest(url, replace(found, run_id=run_id))


def complete_steps(url: str, run_id: str | None = None) -> tuple[int, ...]:
    """Steps of the complete checkpoints, newest first. ``run_id``: only of that run.

    Incomplete, corrupt and foreign ones are skipped. Raises OSError when one cannot look: that is not "there is none".
    """
    return tuple(step for step in _steps(url) if _readable(url, step, run_id))


def prune(url: str, keep: int, run_id: str | None = None) -> tuple[int, ...]:
    """Delete all but the ``keep`` newest complete checkpoints, and incomplete ones older than the newest complete one.

    The newest complete one always stays, and so do those of other runs when ``run_id`` is given. Returns the deleted
    steps. Raises OSError.
    """
    complete = complete_steps(url, run_id)
    if not complete:
        return ()
    kept = complete[: max(keep, 1)]
    deleted = [step for step in _steps(url) if step < complete[0] and step not in kept and _ours(url, step, run_id)]
    for step in deleted:
        folder = storage.join(url, step_folder(step))
        # The marker goes first: a deletion cut short leaves an invisible checkpoint, never a broken one.
        storage.remove(storage.join(folder, MANIFEST_FILE))
        storage.remove(folder)
    return tuple(deleted)


def _check(manifest: Manifest, step: int, what: str) -> None:
    if manifest.format_version != FORMAT_VERSION:
        raise CheckpointError(
            f"{what} has format {manifest.format_version}, this Bamboo reads {FORMAT_VERSION}; use the one that wrote"
        )
    if manifest.step != step:
        raise CheckpointError(f"{what} is foreign: its manifest says step {manifest.step}")
    if [saved.layer for saved in manifest.layers] != list(range(manifest.num_layers)):
        raise CheckpointError(f"{what} is incomplete: its manifest does not name {manifest.num_layers} layers in order")
    if manifest.weights_sha256 != weights_digest(saved.parameters_sha256 for saved in manifest.layers):
        raise CheckpointError(f"{what} is corrupt: weights_sha256 does not fit the layers' digests")


def _check_files(manifest: Manifest, url: str, what: str) -> None:
    for saved in manifest.layers:
        found = storage.size(storage.join(url, step_folder(manifest.step), saved.file))
        if found is None:
            raise CheckpointError(f"{what} is incomplete: {saved.file} is missing")
        if found != saved.num_bytes:
            raise CheckpointError(f"{what} is truncated: {saved.file} has {found} bytes, not {saved.num_bytes}")


def _steps(url: str) -> list[int]:
    """Of all folders that look like checkpoints, complete or not, newest first."""
    matches = (re.fullmatch(r"step-(\d{8,})", name) for name in storage.folders(url))
    return sorted((int(match[1]) for match in matches if match), reverse=True)


def _readable(url: str, step: int, run_id: str | None) -> bool:
    try:
        _read(url, step, run_id)
    except CheckpointError:
        return False
    return True


def _ours(url: str, step: int, run_id: str | None) -> bool:
    """Not the complete checkpoint of another run."""
    return run_id is None or _readable(url, step, run_id) or not _readable(url, step, None)
