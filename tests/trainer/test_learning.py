"""Layers handed over while training goes on: who has learned them fetches nothing, and the sums are the undisturbed."""

import random
from dataclasses import replace

import pytest
from bamboo_trainer import control
from bamboo_trainer.placement import Candidate
from bamboo_trainer.plan import Fetch, Member, Mode, NodeId, Plan, WorkerId
from bamboo_trainer.reconfigure import plan_boundary
from bamboo_trainer.redundancy import fail_over
from bamboo_trainer.wanted import Wanted

from tests.trainer.world import World, grid_plan, worker_name

NUM_STEPS = 6
NEWCOMER = WorkerId("x/1")
LEAVING = worker_name(0, 1)


def start(size: tuple[int, int, int], seed: int | None = None) -> tuple[World, Plan]:
    plan = grid_plan(*size, 2, Mode.BUBBLE)
    world = World(plan.num_layers, size[2], NUM_STEPS, tied=True, checkpoint_every=2)
    for worker_id in (*plan.worker_ids(), NEWCOMER):
        world.add_worker(worker_id)
    world.adopt(plan, plan.worker_ids())
    world.slowness = None if seed is None else random.Random(seed)
    return world, plan


def run_to(world: World, num_actions: int) -> None:
    world.run(lambda worker_id, action: world.num_actions >= num_actions)


def plan_without_leaving(world: World, plan: Plan, generation: int, first_step: int) -> Plan:
    """The coordinator's own planner, with the newcomer in the place of the node that leaves."""
    candidates = [
        Candidate(
            worker_id=w,
            node_id=NodeId(w),
            zone="a",
            address="",
            port=0,
            layers=frozenset(plan.layers_of(w)),
            leaving=w == LEAVING,
        )
        for w in (*plan.worker_ids(), NEWCOMER)
    ]
    wanted = Wanted(
        num_pipelines=plan.num_pipelines,
        num_stages=len(plan.pipelines[0].stages),
        mode=Mode.BUBBLE,
        num_microbatches=plan.num_microbatches,
        costs=tuple(
            control.LayerCost(name=f"l{i}", forward_s=1.0, backward_s=2.0, parameter_bytes=8, activation_bytes=8)
            for i in range(plan.num_layers)
        ),
    )
    found = plan_boundary(generation=generation, first_step=first_step, candidates=candidates, wanted=wanted)
    return replace(found, continues=1)


def learn(world: World, plan: Plan) -> tuple[Fetch, ...]:
    fetches = tuple(f for f in plan_without_leaving(world, plan, 99, 0).fetches if f.worker_id == NEWCOMER)
    sources = tuple(
        Member(worker_id=w, node_id=NodeId(w), address="", port=0) for w in {f.source for f in fetches if f.source}
    )
    world.executors[NEWCOMER].learn(control.Learn(base_generation=1, fetches=fetches, sources=sources))
    return fetches


def quiesce(world: World) -> int:
    """The boundary at which all members stop: the first step of the next plan."""
    members = [w for w in world.executors if w != NEWCOMER]
    generation = world.executors[members[0]].generation
    for worker_id in members:
        world.executors[worker_id].quiesce(generation)
    world.run()
    (step,) = {world.executors[w].step for w in members}
    return step


def finish(world: World, plan: Plan) -> None:
    for worker_id in plan.worker_ids():
        world.executors[worker_id].adopt(plan)
    world.executors.pop(LEAVING, None)
    world.run()


def reference(size: tuple[int, int, int]) -> dict[int, object]:
    world, _ = start(size)
    world.run()
    return {layer: world.disk.files[NUM_STEPS - 1, layer] for layer in range(world.num_layers)}


def check(world: World, size: tuple[int, int, int]) -> None:
    members = {w: e for w, e in world.executors.items() if w != LEAVING}
    assert all(e.committed_step == NUM_STEPS - 1 for e in members.values())
    assert {layer: world.disk.files[NUM_STEPS - 1, layer] for layer in range(world.num_layers)} == reference(size)
    assert not [m for _, m in world.reports if isinstance(m, control.DigestMismatch | control.WorkerFailed)]


SIZES = [(1, 2, 2), (1, 3, 3), (2, 2, 2)]


@pytest.mark.parametrize("size", SIZES)
def test_a_learner_holds_its_layers_at_the_boundary_and_fetches_nothing(size: tuple[int, int, int]) -> None:
    total = start(size)[0]
    total.run()
    for begin in range(1, total.num_actions // 3, 3):
        world, plan = start(size)
        # given a newcomer that learns from any moment on, while steps go on
        run_to(world, begin)
        fetches = learn(world, plan)
        run_to(world, world.num_actions + total.num_actions // 4)
        told = [m for w, m in world.reports if w == NEWCOMER and isinstance(m, control.Learned)]
        assert told and told[-1].layers == tuple(sorted(f.layer for f in fetches))
        # when the members stop and a plan with it begins
        first_step = quiesce(world)
        assert 0 < first_step < NUM_STEPS
        finish(world, plan_without_leaving(world, plan, 2, first_step))
        # then it had everything, and nothing shows of it
        assert world.computes[NEWCOMER].num_held_learned == len(fetches) > 0
        check(world, size)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("seed", range(12))
def test_slow_links_late_lessons_and_lost_sources_cost_a_fetch_at_most(size: tuple[int, int, int], seed: int) -> None:
    rng = random.Random(seed)
    world, plan = start(size, seed)
    run_to(world, rng.randrange(1, 20))
    learn(world, plan)
    run_to(world, world.num_actions + rng.randrange(0, 30))
    if seed % 3 == 0 and size != (1, 2, 2):
        # the node that leaves goes early: whoever follows it hears no more
        world.lose(LEAVING, [w for w in world.executors if rng.random() < 0.5 and w != LEAVING])
        after = fail_over(plan, {LEAVING}, 2)
        assert after is not None
        world.adopt(after, after.worker_ids())
    if seed % 3 == 1:
        # its links break, and come back with everything under way lost
        for peer in plan.worker_ids():
            world.links[peer, NEWCOMER].clear()
            world.links[NEWCOMER, peer].clear()
            world.executors[NEWCOMER].link_up(peer)
            world.executors[peer].link_up(NEWCOMER)
    first_step = quiesce(world)
    if first_step >= NUM_STEPS:
        return

    survivors = [w for w in plan.worker_ids() if w in world.executors]
    last = world.executors[survivors[0]].plan
    assert last is not None
    finish(world, plan_without_leaving(world, last, 3, first_step))

    check(world, size)


def test_what_was_learned_before_steps_are_run_again_is_not_used() -> None:
    world, plan = start((1, 3, 3))
    run_to(world, 10)
    learn(world, plan)
    run_to(world, 60)
    first_step = quiesce(world)

    # when the next plan does not continue the one that was learned under
    again = replace(plan_without_leaving(world, plan, 2, first_step), continues=0)
    finish(world, again)

    assert world.computes[NEWCOMER].num_held_learned == 0
    check(world, (1, 3, 3))
