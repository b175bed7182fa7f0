"""What a commit concludes from the ``Held`` of all members. Pure; every member concludes the same."""

import math
from collections.abc import Mapping, Sequence

from bamboo_trainer.compute import Unit
from bamboo_trainer.frames import Held
from bamboo_trainer.plan import Plan, StepSummary, WorkerId

HeldBy = Mapping[WorkerId, Held]


def summarise(step: int, held: HeldBy, plan: Plan, units: Sequence[Unit]) -> StepSummary:
    losses: dict[int, float] = {}
    norms: dict[int, float] = {}
    for one in held.values():
        losses |= one.losses
        norms |= one.square_norms
    return StepSummary(
        step=step,
        losses=tuple(losses[m] for m in range(plan.num_microbatches)),
        square_norms=tuple(norms[unit.index] for unit in units),
    )


def is_finite(summary: StepSummary) -> bool:
    return all(map(math.isfinite, (*summary.losses, *summary.square_norms)))


def stop_wanted(held: HeldBy) -> bool:
    """One wish is enough: everybody stops at this boundary."""
    return any(one.stop for one in held.values())


def differing_copies(worker_id: WorkerId, held: HeldBy, plan: Plan) -> list[int]:
    """Layers whose copy on this worker has other bits than that of its owner, the host in pipeline 0."""
    mine = held[worker_id].digests
    owners = {layer: plan.stage_of_layer(0, layer).host for layer in mine}
    return [layer for layer, digest in mine.items() if held[owners[layer]].digests.get(layer, digest) != digest]
