"""A recipe: ``mlp`` that takes its time (about a third of a second a step) until the file ``gate`` is there.

So a test may wait for what it wants to see, however busy the machine is, and then let the run end quickly. The numbers
are those of ``mlp``.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bamboo_trainer.models import mlp
from bamboo_trainer.recipe import Dataset, Recipe

BATCH_S = 0.08


@dataclass(frozen=True, slots=True)
class Paced:
    samples: Dataset
    gate: Path

    def __len__(self) -> int:
        return len(self.samples)

    def batch(self, sample_ids: Sequence[int]) -> tuple[Any, Any]:
        if not self.gate.exists():
            time.sleep(BATCH_S)
        return self.samples.batch(sample_ids)


def recipe(*, gate: str) -> Recipe:
    plain = mlp.recipe()
    return replace(plain, dataset=Paced(plain.dataset, Path(gate)))
