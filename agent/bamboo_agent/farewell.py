"""What an agent could not tell any more before its machine ended, left beside the checkpoints of its run.

The next coordinator reads it as if the agent had come back: steps are recorded, the last checkpoint gets its marker.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from bamboo_trainer import storage
from bamboo_trainer.plan import NodeId
from pydantic import TypeAdapter, ValidationError

from bamboo_agent.messages import Envelope

FOLDER = "farewell"
FILE = "envelopes.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Farewell:
    node_id: NodeId
    boot_id: str
    envelopes: tuple[Envelope, ...]
    """In order."""


_FAREWELL: TypeAdapter[Farewell] = TypeAdapter(Farewell)


def leave(url: str, farewell: Farewell) -> None:
    """``url``: the run's checkpoints. Raises OSError."""
    folder = storage.join(url, FOLDER, f"{farewell.node_id}-{farewell.boot_id}")
    storage.write_durably(storage.join(folder, FILE), [_FAREWELL.dump_json(farewell)])


def left(url: str) -> Iterator[Farewell]:
    """What cannot be read is passed over. Raises OSError when one cannot look."""
    folder = storage.join(url, FOLDER)
    for name in storage.folders(folder):
        try:
            yield _FAREWELL.validate_json(bytes(storage.read(storage.join(folder, name, FILE))))
        except (FileNotFoundError, ValidationError):
            continue
