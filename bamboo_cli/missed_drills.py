"""Which losses on purpose never came about. A drill that did not strike has tested nothing."""

from collections.abc import Collection
from pathlib import Path

from bamboo_trainer.control import Kill
from bamboo_trainer.drill import Claims

from bamboo_cli.coordinator.settings import Drill, RunSpec


def read_missed(path: Path, run_id: str) -> tuple[str, ...]:
    """In words, in the order of steps. Raises StateError."""
    from bamboo_cli.coordinator.reader import read_drills

    spec, struck = read_drills(path, run_id)
    return missed(spec, struck, Claims(spec.training.checkpoint_url).taken() if spec.training.kills else ())


def missed(spec: RunSpec, struck: Collection[int], killed: Collection[int]) -> tuple[str, ...]:
    """``struck``: indices of drills; ``killed``: of kills."""
    left: list[Drill | Kill] = [drill for index, drill in enumerate(spec.drills) if index not in struck]
    left += [kill for index, kill in enumerate(spec.training.kills) if index not in killed]
    return tuple(_words(entry) for entry in sorted(left, key=lambda entry: entry.step))


def _words(entry: Drill | Kill) -> str:
    place = f"step {entry.step}" + (f", {entry.action}" if isinstance(entry, Kill) else "")
    whom = entry.node_id or f"the host of stage {entry.stage_index} of pipeline {entry.pipeline_index or 0}"
    return f"{place} on {whom}"
