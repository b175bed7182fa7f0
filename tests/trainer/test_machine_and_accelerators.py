"""Nodes with two workers: the coordinator's machine and the step protocol, whenever one of the nodes goes."""

import random

import pytest
from bamboo_trainer.plan import Mode, Plan, WorkerId
from bamboo_trainer.redundancy import missing_shadows
from bamboo_trainer.schedule import Action
from bamboo_trainer.survival import losses_survived

from bamboo_cli.coordinator.states import RunState
from tests.trainer.machine_world import MachineWorld
from tests.trainer.test_machine_and_executors import Striker, check
from tests.trainer.test_pairs_of_losses import lose_two

INSTANTS = 8
"""Of a run, at which each of its nodes is lost."""
WORLDS = [(1, p, Mode.BUBBLE) for p in (1, 2, 3, 4)]
WORLDS += [(2, p, mode) for p in (1, 2, 3, 4) for mode in (Mode.BUBBLE, Mode.REROUTE)]
UNPROMISED = [(1, 1), (1, 2), (2, 1), (1, 3)]
"""All workers on one node, or three stages in a ring over two."""


def world_of(num_pipelines: int, num_stages: int, mode: Mode, *, seed: int = 0, level: int = 1) -> MachineWorld:
    return MachineWorld(
        num_pipelines=num_pipelines,
        num_stages=num_stages,
        mode=mode,
        level=level,
        num_accelerators=2,
        num_steps=3,
        seed=seed,
    )


def plan_of(world: MachineWorld) -> Plan:
    run = world.machine.board.run
    assert run is not None and run.plan is not None
    return run.plan


def lose_node(world: MachineWorld, index: int, boundary: int) -> Striker:
    def strike(worker_id: WorkerId, action: Action) -> bool:
        if world.world.num_actions != boundary:
            return False
        world.lose_node(WorkerId(f"{sorted(world.nodes)[index]}/1"))
        return worker_id not in world.world.executors

    return strike


def lose_worker(world: MachineWorld, boundary: int) -> Striker:
    def strike(worker_id: WorkerId, action: Action) -> bool:
        if world.world.num_actions != boundary:
            return False
        world.lose_worker(worker_id)
        return True

    return strike


def notice(world: MachineWorld, boundary: int) -> Striker:
    def strike(worker_id: WorkerId, action: Action) -> bool:
        if world.world.num_actions == boundary:
            world.notice(worker_id, 120.0)
        return False

    return strike


@pytest.mark.parametrize(("num_pipelines", "num_stages", "mode"), WORLDS)
def test_any_node_may_go_at_any_time_and_nothing_is_lost_that_was_promised_to_be_kept(
    num_pipelines: int, num_stages: int, mode: Mode
) -> None:
    """On as few nodes as have room. Promised is what the placement can give: each layer on two nodes."""
    reference = world_of(num_pipelines, num_stages, mode)
    reference.run()
    first = plan_of(reference)
    is_promised = losses_survived(first) > 0
    assert is_promised == ((num_pipelines, num_stages) not in UNPROMISED)
    last = reference.world.num_actions
    for boundary in sorted({1 + i * (last - 1) // INSTANTS for i in range(INSTANTS + 1)}):
        for index in range(reference.config.num_nodes):
            world = world_of(num_pipelines, num_stages, mode, seed=boundary)

            world.run(lose_node(world, index, boundary))

            check(world, reference)
            progress = world.machine.board.progress
            assert progress is not None
            if is_promised:
                assert not world.lost_a_layer
                assert (progress.restores, progress.steps_rerun) == (0, 0), (boundary, index)
                assert progress.failovers <= 1, "one plan for all workers of the node"


@pytest.mark.parametrize(("num_pipelines", "num_stages"), [(1, 4), (2, 2)])
def test_any_worker_may_go_alone(num_pipelines: int, num_stages: int) -> None:
    reference = world_of(num_pipelines, num_stages, Mode.BUBBLE)
    reference.run()
    for boundary in range(1, reference.world.num_actions, 7):
        world = world_of(num_pipelines, num_stages, Mode.BUBBLE, seed=boundary)

        world.run(lose_worker(world, boundary))

        check(world, reference)
        progress = world.machine.board.progress
        assert progress is not None and (progress.restores, progress.steps_rerun) == (0, 0), boundary
        assert len(world.nodes) == 2, "no node was rented because of it"


def test_where_nodes_alternate_every_stage_has_its_shadow_elsewhere() -> None:
    for num_pipelines, num_stages, mode in WORLDS:
        world = world_of(num_pipelines, num_stages, mode)
        world.run()
        if mode.has_shadows and num_stages in (2, 4) and num_pipelines * num_stages > 2:
            assert missing_shadows(plan_of(world), 1) == 0


@pytest.mark.parametrize("mode", Mode)
def test_a_ring_of_three_over_two_nodes_trains_with_the_shadows_that_are_left(mode: Mode) -> None:
    """Also where a shadow at distance two computes on what it would have to have made at distance one."""
    world = world_of(1, 3, mode, level=2)
    world.run()
    assert world.state is RunState.DONE
    assert not mode.has_shadows or missing_shadows(plan_of(world), 2) >= 2


@pytest.mark.parametrize("seed", range(30))
def test_a_pair_of_losses_of_nodes_with_two_workers_ends_with_the_undisturbed_weights(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(2):
        lose_two(rng, num_accelerators=2)


def test_a_noticed_node_with_two_workers_leaves_at_a_boundary_and_no_step_runs_twice() -> None:
    reference = world_of(1, 4, Mode.BUBBLE)
    reference.run()
    for boundary in range(5, reference.world.num_actions - 40, 9):
        world = world_of(1, 4, Mode.BUBBLE, seed=boundary)

        world.run(notice(world, boundary))
        check(world, reference)
        progress = world.machine.board.progress
        assert progress is not None and world.state is RunState.DONE
        assert (progress.steps_rerun, progress.failovers, progress.restores) == (0, 0, 0)
