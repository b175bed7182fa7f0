"""Layer files of checkpoints: written in the background, read with every checksum verified."""

import hashlib
import json
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from bamboo_trainer import storage, tensor_file
from bamboo_trainer.control import CheckpointFailed, LayerSaved, TrainingSpec
from bamboo_trainer.held_layer import PARAMETER, LayerState
from bamboo_trainer.manifest import CheckpointError, Manifest, layer_file, layer_url, step_folder
from bamboo_trainer.wire import tensor_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A layer as it was after a step. Nobody changes it any more."""

    layer: int
    name: str
    state: LayerState


@dataclass(frozen=True, slots=True, kw_only=True)
class _Checkpoint:
    step: int
    snapshots: Sequence[Snapshot]


class CheckpointWriter:
    """One thread that writes layer files and reports each. A failure is reported, and never raised into training."""

    def __init__(self, spec: TrainingSpec, report: Callable[[LayerSaved | CheckpointFailed], None]) -> None:
        self._spec = spec
        self._report = report
        # One waits while one is written; a third blocks, since each is a copy of the worker's whole state in memory.
        self._queue: queue.Queue[_Checkpoint | None] = queue.Queue(maxsize=1)
        self._thread = threading.Thread(target=self._run, name="checkpoint-writer", daemon=True)
        self._thread.start()

    def save(self, step: int, snapshots: Sequence[Snapshot]) -> None:
        self._queue.put(_Checkpoint(step=step, snapshots=snapshots))

    def close(self) -> None:
        """Waits until all is written or has failed. Closing twice is not an error."""
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()

    def _run(self) -> None:
        while (checkpoint := self._queue.get()) is not None:
            for snapshot in checkpoint.snapshots:
                try:
                    saved = write_layer(self._spec, checkpoint.step, snapshot)
                except Exception as error:  # noqa: BLE001 - object stores raise errors of their own
                    self._report(_failure(self._spec, checkpoint.step, snapshot, error))
                    break  # one missing layer makes the checkpoint invisible: no use in writing the others
                self._report(saved)


def _failure(spec: TrainingSpec, step: int, snapshot: Snapshot, error: Exception) -> CheckpointFailed:
    return CheckpointFailed(
        checkpoint_step=step,
        layer=snapshot.layer,
        detail=f"cannot write {layer_url(spec.checkpoint_url, step, snapshot.layer)}: {error}",
    )


def write_layer(spec: TrainingSpec, step: int, snapshot: Snapshot) -> LayerSaved:
    """Durable when this returns. Raises OSError."""
    file = _layer_file(spec, step, snapshot)
    storage.write_durably(layer_url(spec.checkpoint_url, step, snapshot.layer), file)
    return _saved(step, snapshot, file)


def describe_layer(spec: TrainingSpec, step: int, snapshot: Snapshot) -> LayerSaved:
    """What ``write_layer`` would return; nothing is written."""
    file = _layer_file(spec, step, snapshot)
    for _ in file:
        pass
    return _saved(step, snapshot, file)


def _layer_file(spec: TrainingSpec, step: int, snapshot: Snapshot) -> "_Hashed":
    tensors = {name: value for name, value in snapshot.state.items() if isinstance(value, Tensor)}
    numbers = {name: value for name, value in snapshot.state.items() if not isinstance(value, Tensor)}
    metadata = {
        "format": "bamboo-layer-1",
        "step": str(step),
        "layer": str(snapshot.layer),
        "name": snapshot.name,
        "numbers": json.dumps(numbers, sort_keys=True),
    }
    return _Hashed(tensor_file.pieces(tensors, metadata))


def _saved(step: int, snapshot: Snapshot, file: "_Hashed") -> LayerSaved:
    return LayerSaved(
        checkpoint_step=step,
        layer=snapshot.layer,
        name=snapshot.name,
        file=layer_file(snapshot.layer),
        num_bytes=file.num_bytes,
        file_sha256=file.sha256.hexdigest(),
        parameters_sha256=parameters_digest(snapshot.state),
    )


class _Hashed:
    """Pieces that are counted and digested as they pass."""

    def __init__(self, pieces: Iterable[bytes | memoryview]) -> None:
        self._pieces = pieces
        self.num_bytes = 0
        self.sha256 = hashlib.sha256()

    def __iter__(self) -> Iterator[bytes | memoryview]:
        for piece in self._pieces:
            self.num_bytes += len(piece)
            self.sha256.update(piece)
            yield piece


def read_layer(url: str, manifest: Manifest, layer: int) -> LayerState:
    """The layer as it was saved. Raises CheckpointError when a checksum or a name does not fit."""
    saved = manifest.layers[layer]
    place = storage.join(url, step_folder(manifest.step), saved.file)
    try:
        data = storage.read(place)
    except OSError as error:
        raise CheckpointError(f"cannot read {place}: {error}") from error
    if len(data) != saved.num_bytes:
        raise CheckpointError(f"{place} is truncated: it has {len(data)} bytes, not {saved.num_bytes}")
    if hashlib.sha256(data).hexdigest() != saved.file_sha256:
        raise CheckpointError(f"{place} is corrupt: its SHA-256 is not the one in the manifest")
    try:
        tensors, metadata = tensor_file.parse(data)
        numbers = json.loads(metadata["numbers"])
    except (ValueError, KeyError) as error:
        raise CheckpointError(f"{place} is no layer file of Bamboo: {error}") from error
    if (metadata.get("layer"), metadata.get("step")) != (str(layer), str(manifest.step)):
        raise CheckpointError(f"{place} is foreign: it says layer {metadata.get('layer')}, step {metadata.get('step')}")
    return {**tensors, **numbers}


def parameters_digest(state: LayerState) -> str:
    """SHA-256 of the parameters' bytes in name order."""
    named = sorted((k, v) for k, v in state.items() if k.startswith(PARAMETER) and isinstance(v, Tensor))
    return digest_tensors(tensor for _, tensor in named)


def digest_tensors(tensors: Iterable[Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor_bytes(tensor))
    return digest.hexdigest()
