"""The codec between what the coordinator knows and the rows that are stored of it."""

from typing import Any

from pydantic import TypeAdapter

from bamboo_cli.coordinator.entities import Cluster, Node
from bamboo_cli.coordinator.run_entities import Checkpoints, Progress, Run

Entity = Cluster | Node | Run | Progress | Checkpoints

_ADAPTERS: dict[str, TypeAdapter[Any]] = {
    "cluster": TypeAdapter(Cluster),
    "node": TypeAdapter(Node),
    "run": TypeAdapter(Run),
    "progress": TypeAdapter(Progress),
    "checkpoints": TypeAdapter(Checkpoints),
}


def encode_row(name: str, entity: Entity) -> str:
    return _ADAPTERS[name.partition("/")[0]].dump_json(entity).decode()


def decode_row(name: str, text: str) -> Any:
    """Raises pydantic.ValidationError when the row was not written by ``encode_row``."""
    return _ADAPTERS[name.partition("/")[0]].validate_json(text)
