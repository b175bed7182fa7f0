"""What a step sends, by the formula, is what executors send."""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from bamboo_trainer.control import LayerCost
from bamboo_trainer.executor import Send
from bamboo_trainer.frames import Datum
from bamboo_trainer.plan import Mode, Plan, WorkerId
from bamboo_trainer.traffic import step_traffic

from tests.trainer.world import World, grid_plan

MIB = 2**20


def cost(layer: int) -> LayerCost:
    """Each layer's bytes are its own, and parameters divide by two and three."""
    return LayerCost(
        name=f"layer {layer}",
        forward_s=1.0,
        backward_s=2.0,
        parameter_bytes=6 * MIB * (layer + 1),
        activation_bytes=7 + layer,
    )


class Counting(World):
    """Adds up the bytes of the data that is handed over."""

    sent: Counter[tuple[WorkerId, WorkerId]]

    def count(self, plan: Plan, costs: Sequence[LayerCost]) -> None:
        self.sent = Counter()
        for worker_id, executor in self.executors.items():
            executor._send = partial(self._count, plan, costs, worker_id, executor._send)

    def _count(self, plan: Plan, costs: Sequence[LayerCost], sender: WorkerId, send: Send, *to: Any) -> None:
        receiver, frame = to
        if isinstance(frame, Datum):
            key = frame.key
            if key.kind in "FB":
                layers = plan.stage(key.a, key.b).layers
                layer = layers[0] - 1 if key.kind == "F" else layers[-1]
                self.sent[sender, receiver] += costs[layer].activation_bytes
            else:  # of a unit, which is a layer: a share of it
                self.sent[sender, receiver] += costs[key.a].parameter_bytes // plan.num_pipelines
        send(receiver, frame)


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("mode", [Mode.OFF, Mode.MIRROR, Mode.BUBBLE, Mode.FULL])
@pytest.mark.parametrize("pipelines", [1, 2, 3])
def test_a_step_sends_what_the_formula_says(pipelines: int, mode: Mode, level: int) -> None:
    plan = grid_plan(pipelines, 3, 4 * pipelines, 2, mode, level)
    costs = [cost(layer) for layer in range(plan.num_layers)]
    world = Counting(plan.num_layers, 4 * pipelines, 1, tied=False)
    for worker_id in plan.worker_ids():
        world.add_worker(worker_id)
    world.count(plan, costs)
    world.adopt(plan)

    world.run()

    assert world.finished()
    assert world.sent == step_traffic(plan, costs)
