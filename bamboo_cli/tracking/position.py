"""How far a tracker has been told of a run: kept beside the state file, so that a restart makes no holes or doubles."""

import os
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

FOLDER = "tracking"


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    curve: str
    """Name of the curve: the id of the first of the runs that go on from one another."""
    next_step: int
    event_id: int = 0
    """The newest line of the story that was told."""
    before_microusd: int = 0
    """What the earlier runs of the curve had cost."""
    microusd: int = 0
    """What the curve has cost up to the step before ``next_step``."""
    over: bool = False


_POSITION: TypeAdapter[Position] = TypeAdapter(Position)


def place(cluster_dir: Path, tracker: str, run_id: str) -> Path:
    return cluster_dir / FOLDER / f"{run_id}.{tracker}.json"


def load(cluster_dir: Path, tracker: str, run_id: str) -> Position | None:
    """None: none is known, or what is there cannot be understood. Raises OSError when one cannot look."""
    try:
        return _POSITION.validate_json(place(cluster_dir, tracker, run_id).read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


def store(cluster_dir: Path, tracker: str, run_id: str, position: Position) -> None:
    """Whole or not at all. Raises OSError."""
    path = place(cluster_dir, tracker, run_id)
    path.parent.mkdir(exist_ok=True)
    beside = path.with_suffix(f".{os.getpid()}.new")
    try:
        beside.write_bytes(_POSITION.dump_json(position))
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise


def first(cluster_dir: Path, tracker: str, run_id: str, resumes: str | None, begins_at_step: int) -> Position:
    """Of a run that this tracker has heard nothing of. ``resumes``: the run that it goes on from."""
    earlier = load(cluster_dir, tracker, resumes) if resumes is not None else None
    if earlier is None:
        return Position(curve=run_id, next_step=begins_at_step)
    return Position(
        curve=earlier.curve,
        next_step=begins_at_step,
        before_microusd=earlier.microusd,
        microusd=earlier.microusd,
    )
