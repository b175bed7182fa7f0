"""A run of two steps that left a checkpoint."""

from pathlib import Path
from typing import Any

from bamboo_trainer.control import TrainingSpec
from bamboo_trainer.manifest import make_manifest, write_manifest

from tests.trainer.torch_world import HandRunWorld, make_spec


def saved_run(folder: Path, recipe, num_steps: int = 2, **changes: Any) -> TrainingSpec:
    """``changes``: of the spec."""
    said = []
    spec = make_spec(checkpoint_url=folder.as_uri(), **changes)
    world = HandRunWorld(spec, recipe, (0,), report=said.append)
    world.run(0, num_steps)
    (stage,), (compute,) = world.stages[0], world.computes[0]
    compute.save(num_steps - 1, stage.layers)
    compute.close()
    manifest = make_manifest(
        run_id=spec.run_id, step=num_steps - 1, seed=spec.seed, layers=said, created_at="2026-01-01T00:00:00Z"
    )
    write_manifest(spec.checkpoint_url, manifest)
    return spec
