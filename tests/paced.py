"""A recipe: ``mlp``, or another, that takes its time (about a third of a second a step) until a file ``gate`` is there.

So a test may wait for what it wants to see, however busy the machine is, and then let the run end quickly. The numbers
are those of the recipe itself.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bamboo_trainer.models import gpt2, mlp
from bamboo_trainer.recipe import Dataset, Recipe

BATCH_S = 0.08
LOOK_S = 0.005


@dataclass(frozen=True, slots=True)
class Paced:
    samples: Dataset
    gate: Path
    pause_s: float

    def __len__(self) -> int:
        return len(self.samples)

    def batch(self, sample_ids: Sequence[int]) -> tuple[Any, Any]:
        self._await_gate()
        return self.samples.batch(sample_ids)

    def _await_gate(self) -> None:
        """For the time of a batch at most. (A worker has no tests/waiting.py.)"""
        deadline = time.monotonic() + self.pause_s
        while not self.gate.exists() and time.monotonic() < deadline:
            time.sleep(LOOK_S)


def recipe(*, gate: str, model: str = "mlp", pause_s: float = BATCH_S, **options: Any) -> Recipe:
    """``pause_s``: a microbatch, at each end of the pipeline. ``options``: of the model."""
    plain = {"mlp": mlp.recipe, "gpt2": gpt2.recipe}[model](**options)
    return replace(plain, dataset=Paced(plain.dataset, Path(gate), pause_s))
