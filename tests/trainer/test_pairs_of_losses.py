"""The coordinator's machine and the step protocol together: two losses, the second one at any moment of the recovery.

By chance in every run of the tests; every pair there is, hand-overs included, in ``make pairs``.
"""

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from bamboo_trainer.plan import Mode, WorkerId
from bamboo_trainer.schedule import Action

from bamboo_cli.coordinator.states import RunState
from tests.trainer.machine_world import MachineWorld
from tests.trainer.test_machine_and_executors import Striker, check, lose_at, undisturbed

SHAPES = [(d, p, m) for d in (1, 2) for p in (2, 3, 4) for m in (1, 2, 3, 4) if m >= d] + [(2, 1, 2), (2, 1, 4)]
HELPED = [(2, 2, 7), (2, 3, 6), (3, 2, 6), (3, 1, 7)]
"""With help for whoever takes a stage over."""
NUM_STEPS = 3
NOTICE_S = 120.0

Case = dict[str, Any]


def case_of(shape: tuple[int, int, int], mode: Mode, level: int, num_accelerators: int = 1) -> Case:
    d, p, m = shape
    size = {"num_pipelines": d, "num_stages": p, "num_microbatches": m, "num_steps": NUM_STEPS}
    return size | {"mode": mode, "level": level, "num_accelerators": num_accelerators}


def world_of(case: Case, **options: Any) -> MachineWorld:
    world = MachineWorld(**case, **options)
    # without protection the run goes on with fewer pipelines, and so with other bits, rather than wait
    mode, has_successor = case["mode"], case["num_stages"] >= 2
    same = mode.survives_within_step or (mode.has_shadows and has_successor) or case["num_pipelines"] == 1
    world.world.disk.same_bits = same
    return world


def judge(world: MachineWorld, reference: MachineWorld) -> None:
    """The run has ended, with the sums of the undisturbed one, by the cheapest rung that holds."""
    if world.world.disk.same_bits:
        check(world, reference)
    assert world.state is RunState.DONE
    progress = world.machine.board.progress
    assert progress is not None
    assert world.lost_a_layer or (progress.restores, progress.steps_rerun) == (0, 0), "a costlier rung"


# --- pairs by chance --------------------------------------------------------------------------------------------------


def lose_two(
    rng: random.Random, first: int | None = None, second: int | None = None, num_accelerators: int = 1
) -> None:
    """A world of any small shape, protection and level; the second loss may strike during takeover, halt, transfer or
    restore. ``first``, ``second``: at which actions; chosen at random when not given."""
    case = case_of(
        rng.choice([*SHAPES, *HELPED]), rng.choice(list(Mode)), rng.choice((1, 2)), num_accelerators=num_accelerators
    )
    reference = undisturbed(**case)
    first = rng.randrange(1, reference.world.num_actions) if first is None else first
    second = first + rng.choice((1, 2, rng.randrange(1, 40))) if second is None else second
    restarts = rng.choice(((), (), range(20, 2000, 40)))
    world = world_of(case, seed=rng.randrange(10**6), restarts=restarts)

    world.run(lose_at(world, first, second))

    judge(world, reference)


@pytest.mark.parametrize("seed", range(60))
def test_a_pair_of_losses_ends_with_the_undisturbed_weights(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(4):
        lose_two(rng)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 600))
def test_many_more_pairs_of_losses_end_with_the_undisturbed_weights(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(4):
        lose_two(rng)


# --- every pair -------------------------------------------------------------------------------------------------------

First = Callable[[MachineWorld, WorkerId], bool]
"""What befalls the node whose turn it is. True: it is gone."""


def lost(world: MachineWorld, worker_id: WorkerId) -> bool:
    world.lose_node(worker_id)
    return True


def noticed(world: MachineWorld, worker_id: WorkerId) -> bool:
    world.notice(worker_id, NOTICE_S)
    return False


def strike_twice(world: MachineWorld, first: tuple[int, First], second: int, struck: list[int]) -> Striker:
    """``struck`` tells at which actions something happened. The second loss is of the node whose turn it is."""
    boundary, befall = first

    def strike(worker_id: WorkerId, action: Action) -> bool:
        now = world.world.num_actions
        if now == boundary:
            struck.append(now)
            return befall(world, worker_id)
        if now == second and len(world.world.executors) > 1:
            struck.append(now)
            return lost(world, worker_id)
        return False

    return strike


def strike_together(world: MachineWorld, boundary: int, other: WorkerId, struck: list[int]) -> Striker:
    """The node whose turn it is and another one vanish before anybody has heard of either."""

    def strike(worker_id: WorkerId, action: Action) -> bool:
        alive = world.world.executors
        if world.world.num_actions != boundary or other == worker_id or other not in alive or len(alive) <= 2:
            return False
        struck.append(boundary)
        world.lose_node(worker_id)
        world.lose_node(other)
        return True

    return strike


def every_pair(case: Case, befall: First) -> Iterator[str]:
    """The first one at each action of the second of three steps, the second one at each action from then to the end of
    the run: in the recovery, in the transfers after it, in the next step. Yields what was tried."""
    reference = undisturbed(**case)
    num_actions = reference.world.num_actions
    for boundary in range(num_actions // NUM_STEPS, 2 * num_actions // NUM_STEPS + 1):
        for second in itertools.count(boundary + 1):
            world, struck = world_of(case, seed=boundary * 1000 + second), list[int]()
            tried = f"{case}: {befall.__name__} at {boundary}, lost at {second}"
            try:
                world.run(strike_twice(world, (boundary, befall), second, struck))
                judge(world, reference)
            except AssertionError as error:
                raise AssertionError(f"{tried}: {error}") from error
            if len(struck) < 2:
                break
            yield tried


def every_two_at_once(case: Case) -> Iterator[str]:
    reference, workers = MachineWorld(**case), set[WorkerId]()
    reference.run(lambda worker_id, _: bool(workers.add(worker_id)))
    num_actions = reference.world.num_actions
    for boundary in range(num_actions // NUM_STEPS, 2 * num_actions // NUM_STEPS + 1):
        for other in sorted(workers):
            world, struck = world_of(case, seed=boundary), list[int]()
            tried = f"{case}: lost with {other} at {boundary}"
            try:
                world.run(strike_together(world, boundary, other, struck))
                judge(world, reference)
            except AssertionError as error:
                raise AssertionError(f"{tried}: {error}") from error
            if struck:
                yield tried


CASES = [case_of(shape, mode, level) for shape in SHAPES for mode in Mode for level in (1, 2)]
CASES.sort(key=lambda case: case["num_pipelines"] * case["num_stages"] * case["num_microbatches"])


def name_of(case: Case) -> str:
    return "{num_pipelines}x{num_stages}x{num_microbatches} {mode} level {level}".format(**case)


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_every_pair_of_losses_ends_with_the_undisturbed_weights(case: Case) -> None:
    assert sum(1 for _ in every_pair(case, lost)) > 100
    assert sum(1 for _ in every_two_at_once(case)) > 0 or case["num_pipelines"] * case["num_stages"] == 2


@pytest.mark.exhaustive
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_every_loss_after_every_notice_ends_with_the_undisturbed_weights(case: Case) -> None:
    assert sum(1 for _ in every_pair(case, noticed)) > 100
