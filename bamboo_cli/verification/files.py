"""Checkpoints and the model file, byte for byte against their checksums. No torch: only bytes are compared."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass

from bamboo_trainer import storage
from bamboo_trainer.control import LayerSaved
from bamboo_trainer.manifest import MANIFEST_FILE, CheckpointError, Manifest, layer_url, read_manifest, step_folder

from bamboo_cli.coordinator.status import RunLedger
from bamboo_cli.verification.findings import About, Finding

PARAMETER = "parameter/"
"""Before the name of a parameter in a layer file; its optimizer state has other prefixes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesCheck:
    problems: tuple[Finding, ...]
    intact: dict[int, Manifest]
    """Checkpoints by step that one can begin from."""


def check_files(ledger: RunLedger) -> FilesCheck:
    """Every checkpoint that the state file names, and the model."""
    run = ledger.run
    problems: list[Finding] = []
    intact: dict[int, Manifest] = {}
    for step in run.checkpoint_steps:
        try:
            manifest = _check_checkpoint(ledger, step)
        except (CheckpointError, OSError, ValueError) as error:
            if step != run.checkpoint_steps[-1] and is_pruned(ledger, step):
                continue
            problems.append(Finding(about=About.CHECKPOINT, step=step, text=str(error)))
        else:
            intact[step] = manifest
    last = intact.get(ledger.training.num_steps - 1)
    if run.state == "done" and last is None and not problems:
        text = "the run is done, but the state file names no checkpoint of its last step"
        problems.append(Finding(about=About.CHECKPOINT, text=text))
    if last is not None and run.model_url is not None:
        try:
            texts = list(_check_model(ledger, last, run.model_url))
        except (OSError, ValueError) as error:
            texts = [f"{run.model_url} cannot be read: {error}"]
        problems += [Finding(about=About.MODEL, text=text) for text in texts]
    return FilesCheck(problems=tuple(problems), intact=intact)


def is_pruned(ledger: RunLedger, step: int) -> bool:
    """While a run goes on, its older checkpoints are deleted as newer ones are made: the marker first."""
    marker = storage.join(ledger.training.checkpoint_url, step_folder(step), MANIFEST_FILE)
    named = step in ledger.run.checkpoint_steps
    return named and ledger.run.ended_at is None and storage.size(marker) is None


def _check_checkpoint(ledger: RunLedger, step: int) -> Manifest:
    """Raises CheckpointError with the first thing that is wrong, OSError when one cannot look."""
    url, run = ledger.training.checkpoint_url, ledger.run
    manifest = read_manifest(url, step, run.run_id)
    if manifest.seed != ledger.training.seed:
        raise CheckpointError(f"the checkpoint of step {step} was made from seed {manifest.seed}, not of this run")
    for saved in manifest.layers:
        place, data = _read_layer(ledger, manifest, saved)
        if hashlib.sha256(data).hexdigest() != saved.file_sha256:
            raise CheckpointError(f"{place} is corrupt: its SHA-256 is not the one in the manifest")
        digest = hashlib.sha256()
        for _, piece in sorted(_parameters(data).items()):
            digest.update(piece)
        if digest.hexdigest() != saved.parameters_sha256:
            raise CheckpointError(f"{place}: the digest of its parameters is not the one in the manifest")
    is_last = step == ledger.training.num_steps - 1
    if is_last and run.weights_sha256 is not None and manifest.weights_sha256 != run.weights_sha256:
        raise CheckpointError(
            f"the checkpoint of step {step} has the weights {manifest.weights_sha256[:12]}…; "
            f"those that the state file names are {run.weights_sha256[:12]}…"
        )
    return manifest


def _check_model(ledger: RunLedger, manifest: Manifest, model_url: str) -> Iterator[str]:
    """Each parameter is that of the last checkpoint; a tied one is there once. Raises OSError, ValueError."""
    model = tensors(storage.read(model_url))
    seen: set[bytes] = set()
    for saved in manifest.layers:
        _, data = _read_layer(ledger, manifest, saved)
        for name, piece in _parameters(data).items():
            in_model = model.pop(f"{saved.name}.{name}", None)
            digest = hashlib.sha256(piece).digest()
            if in_model is None and digest not in seen:
                yield f"{model_url} lacks {saved.name}.{name}"
            if in_model is not None and in_model != piece:
                yield f"{model_url}: {saved.name}.{name} is not that of the checkpoint of step {manifest.step}"
            seen.add(digest)
    if model:
        yield f"{model_url} has tensors that the checkpoint has not: {', '.join(sorted(model))}"


def _read_layer(ledger: RunLedger, manifest: Manifest, saved: LayerSaved) -> tuple[str, bytearray]:
    place = layer_url(ledger.training.checkpoint_url, manifest.step, saved.layer)
    return place, storage.read(place)


def _parameters(data: bytearray) -> dict[str, memoryview]:
    return {n.removeprefix(PARAMETER): piece for n, piece in tensors(data).items() if n.startswith(PARAMETER)}


def tensors(data: bytearray) -> dict[str, memoryview]:
    """The bytes of each tensor of a safetensors file. Raises ValueError when it is none."""
    start = 8 + int.from_bytes(data[:8], "little")
    try:
        entries = json.loads(data[8:start])
        entries.pop("__metadata__", None)
        places = {name: entry["data_offsets"] for name, entry in entries.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a safetensors file: {error}") from error
    return {name: memoryview(data)[start + first : start + end] for name, (first, end) in places.items()}
