"""Every single loss at every action boundary of small worlds ends with exactly the undisturbed sums."""

import random
from collections.abc import Collection, Iterator

import pytest
from bamboo_trainer import control
from bamboo_trainer.helping import with_help
from bamboo_trainer.plan import Mode, Plan, WorkerId
from bamboo_trainer.plan_rules import check_plan
from bamboo_trainer.redundancy import fail_over
from bamboo_trainer.schedule import Action

from tests.trainer.world import World, grid_plan, worker_name

NUM_STEPS = 2


def start(
    num_pipelines: int,
    num_stages: int | tuple[int, ...],
    num_microbatches: int,
    mode: Mode | tuple[Mode, ...],
    layers_per_stage: int = 1,
    bare: tuple[int, ...] = (),
    tied: bool = True,
    level: int = 1,
) -> World:
    plan = grid_plan(num_pipelines, num_stages, num_microbatches, layers_per_stage, mode, level)
    world = World(plan.num_layers, num_microbatches, NUM_STEPS, tied=tied, checkpoint_every=1, bare=bare)
    for worker_id in plan.worker_ids():
        world.add_worker(worker_id)
    world.adopt(plan)
    return world


def undisturbed(
    num_pipelines: int,
    num_stages: int | tuple[int, ...],
    num_microbatches: int,
    mode: Mode | tuple[Mode, ...],
    layers: int = 1,
    bare: tuple[int, ...] = (),
    tied: bool = True,
    level: int = 1,
) -> World:
    world = start(num_pipelines, num_stages, num_microbatches, mode, layers, bare, tied, level)
    world.run()
    assert world.finished()
    return world


def lose_at(world: World, boundary: int) -> tuple[WorkerId, Action]:
    """Runs up to the given action (counted over all workers) and says whose turn it is."""
    at: list[tuple[WorkerId, Action]] = []

    def stop(worker_id: WorkerId, action: Action) -> bool:
        if world.num_actions == boundary:
            at.append((worker_id, action))
        return bool(at)

    world.run(stop)
    return at[0]


def recover(world: World, victim: WorkerId, late: WorkerId | None, *, helped: bool = False) -> None:
    """The coordinator's answer. ``late``: a survivor that hears of it when the others can do no more without it."""
    plan = next(iter(world.executors.values())).plan
    assert plan is not None
    after = fail_over(plan, {victim}, generation=2)
    assert after is not None
    if helped:
        after = with_help(after, plan)
        check_plan(after)
        assert any(stage.parts for stage in after.stages())
    if late is None:
        world.adopt(after)
    else:
        world.adopt(after, [w for w in world.executors if w != late])
        world.run()
        world.adopt(after, [late])
    world.run()


def check(world: World, reference: World) -> None:
    assert world.finished(), {w: (e.step, str(e.next())) for w, e in world.executors.items()}
    assert world.weights() == reference.weights()
    commits: dict[int, object] = {}
    for _, message in world.reports:
        assert not isinstance(message, control.WorkerFailed | control.DigestMismatch)
        if isinstance(message, control.StepCommitted):
            assert commits.setdefault(message.summary.step, message.summary) == message.summary
    assert sorted(commits) == list(range(NUM_STEPS))
    assert all(world.disk.files[key] == state for key, state in reference.disk.files.items() if key in world.disk.files)
    assert NUM_STEPS - 1 in world.disk.complete_steps(world.num_layers), "the last checkpoint is whole"


def deliveries(world: World, victim: WorkerId) -> Iterator[tuple[WorkerId, ...]]:
    """Which peers still get what the victim had sent: none, all, and each alone."""
    others = tuple(w for w in world.executors if w != victim)
    yield ()
    yield others
    yield from ((w,) for w in others if len(others) > 1)


Size = tuple[int, int | tuple[int, ...], int, Mode | tuple[Mode, ...]]

SIZES = [(d, p, m) for d in (1, 2) for p in (2, 3) for m in (1, 2, 3) if m >= d]
CASES = [(*size, mode) for size in SIZES for mode in (Mode.LAZY, Mode.BUBBLE, Mode.EAGER, Mode.FULL)]
CASES += [(2, p, m, Mode.REROUTE) for p in (1, 2, 3) for m in (2, 3)]
UNEQUAL: list[Size] = [
    (2, depths, m, mode)
    for depths, m in (((2, 1), 3), ((1, 2), 2), ((3, 2), 2))
    for mode in (Mode.LAZY, Mode.BUBBLE, Mode.EAGER, Mode.FULL)
]
UNEQUAL += [(2, (3, 2), 4, Mode.BUBBLE)]


def lose_everywhere(size: Size, *, all_ways: bool, helped: bool = False) -> int:
    """At each action boundary, before and after the action; ``all_ways``: with each delivery and each late survivor
    rather than one of each in turn. Returns the number of worlds."""
    reference = undisturbed(*size)
    num_worlds = 0
    for boundary in range(1, reference.num_actions + 1):
        spare: World | None = start(*size)
        assert spare is not None
        victim, action = lose_at(spare, boundary)
        survivors = [w for w in spare.executors if w != victim]
        ways = [
            (reached, late)
            for index, reached in enumerate(deliveries(spare, victim))
            for late in (None, survivors[(boundary + index) % len(survivors)])
        ]
        for strike_after in (False, True):
            for reached, late in ways if all_ways else (ways[0], ways[(2 * boundary + 1) % len(ways)]):
                world, spare = spare or start(*size), None
                if world.num_actions < boundary:
                    assert lose_at(world, boundary) == (victim, action)
                if strike_after:
                    world.executors[victim].perform(action)
                world.lose(victim, reached)
                recover(world, victim, late, helped=helped)
                check(world, reference)
                num_worlds += 1
    assert num_worlds >= 4 * reference.num_actions
    return num_worlds


@pytest.mark.parametrize(("num_pipelines", "num_stages", "num_microbatches", "mode"), CASES)
def test_every_single_loss_ends_with_the_undisturbed_sums(
    num_pipelines: int, num_stages: int, num_microbatches: int, mode: Mode
) -> None:
    lose_everywhere((num_pipelines, num_stages, num_microbatches, mode), all_ways=False)


HELPED: list[Size] = [(2, p, 4, mode) for p in (2, 3) for mode in (Mode.LAZY, Mode.BUBBLE, Mode.EAGER)]
HELPED += [(3, 1, 6, Mode.REROUTE), (3, 2, 6, Mode.REROUTE), (3, 2, 9, Mode.BUBBLE), (2, 2, 7, Mode.BUBBLE)]
HELPED += [(2, (4, 2), 4, (Mode.BUBBLE, Mode.LAZY, Mode.EAGER, Mode.BUBBLE))]


@pytest.mark.parametrize("size", HELPED, ids=lambda size: "-".join(map(str, size)))
def test_every_single_loss_with_the_help_of_other_pipelines(size: Size) -> None:
    lose_everywhere(size, all_ways=False, helped=True)


def fail_over_with_help(world: World, lost: Collection[WorkerId], generation: int) -> bool:
    """False: the step is lost, and would be run again."""
    plan = next(iter(world.executors.values())).plan
    assert plan is not None
    after = fail_over(plan, lost, generation)
    if after is None:
        return False
    after = with_help(after, plan)
    check_plan(after)
    world.adopt(after)
    return True


def lose_a_second(size: Size, rng: random.Random, first: int, distance: int, role: str) -> bool:
    """``role``: of the second victim; ``together``: both are lost at once. Returns whether the step survived it."""
    reference = undisturbed(*size)
    world = start(*size)
    victim, _ = lose_at(world, first)
    plan = next(iter(world.executors.values())).plan
    assert plan is not None
    after = with_help(not_none(fail_over(plan, {victim}, 2)), plan)
    parts = next(stage.parts for stage in after.stages() if stage.parts)
    second = {"shadow": parts[0].host, "helper": parts[1].host}.get(role) or rng.choice(
        [w for w in world.executors if w != victim]
    )
    lost = [victim] if role != "together" else [victim, second]
    for worker_id in lost:
        others = [w for w in world.executors if w not in lost]
        world.lose(worker_id, [w for w in others if rng.random() < 0.5])
    if not fail_over_with_help(world, lost, 2):
        return False
    if role != "together":
        # some of the survivors do so many actions before the second loss; some have not heard of the first one by then
        begun = world.num_actions
        world.run(lambda worker_id, action: world.num_actions >= begun + distance)
        world.lose(second, [w for w in world.executors if w != second and rng.random() < 0.5])
        if not fail_over_with_help(world, [second], 3):
            return False
    world.run()
    check(world, reference)
    return True


@pytest.mark.parametrize("mode", [Mode.LAZY, Mode.BUBBLE, Mode.EAGER, Mode.FULL])
def test_two_neighbours_lost_at_once_at_level_2_at_every_action(mode: Mode) -> None:
    """Also where the one had brought all its gradients to their sums, and its outputs died with it."""
    size = (1, 4, 4, mode, 1, (), True, 2)
    reference = undisturbed(*size)
    for boundary in range(1, reference.num_actions + 1):
        world = start(*size)
        victim, _ = lose_at(world, boundary)
        plan = next(iter(world.executors.values())).plan
        assert plan is not None
        lost = plan.hosted_by(victim)[0].holders[:2]
        for worker_id in lost:
            world.lose(worker_id)
        world.adopt(not_none(fail_over(plan, lost, 2)))
        world.run()
        check(world, reference)


def not_none(plan: Plan | None) -> Plan:
    assert plan is not None
    return plan


@pytest.mark.parametrize("role", ["shadow", "helper", "anybody", "together"])
@pytest.mark.parametrize("size", HELPED, ids=lambda size: "-".join(map(str, size)))
def test_a_second_loss_while_others_help_ends_with_the_undisturbed_sums(size: Size, role: str) -> None:
    """With the first loss at every fourth action, and the second one anywhere behind it."""
    rng = random.Random(f"{size} {role}")
    num_actions = undisturbed(*size).num_actions
    survived = [
        lose_a_second(size, rng, first, rng.randrange(0, num_actions - first + 12), role)
        for first in range(1 + rng.randrange(4), num_actions + 1, 4)
        for _ in range(2)
    ]
    assert sum(survived) > len(survived) // 4


@pytest.mark.parametrize("size", UNEQUAL, ids=lambda size: f"{'+'.join(map(str, size[1]))}-{size[2]}-{size[3]}")
def test_every_single_loss_in_pipelines_of_unequal_depth(size: Size) -> None:
    lose_everywhere(size, all_ways=False)


@pytest.mark.parametrize(
    "modes", [(Mode.BUBBLE, Mode.LAZY, Mode.FULL), (Mode.EAGER, Mode.BUBBLE, Mode.LAZY)], ids=" ".join
)
def test_every_single_loss_where_each_stage_is_protected_in_its_own_way(modes: tuple[Mode, ...]) -> None:
    lose_everywhere((1, 3, 3, modes), all_ways=False)


def test_reroute_needs_one_worker_elsewhere_with_all_of_the_stages_layers() -> None:
    plan = grid_plan(2, (3, 2), 2, 2, Mode.REROUTE)
    for stage in plan.stages():
        covered = any(
            set(stage.layers) <= set(other.layers)
            for other in plan.stages()
            if other.pipeline_index != stage.pipeline_index
        )
        assert (fail_over(plan, {stage.host}, generation=2) is not None) == covered
    assert fail_over(plan, {plan.stage(1, 0).host}, generation=2) is None, "half of the model is nowhere on one worker"
    assert fail_over(plan, {plan.stage(0, 0).host}, generation=2) is not None


@pytest.mark.parametrize("depths", [(2, 1), (3, 2), (1, 3)])
def test_the_cut_of_each_pipeline_leaves_the_numbers_as_they_are(depths: tuple[int, ...]) -> None:
    depth = max(depths)
    assert undisturbed(2, depths, 4, Mode.BUBBLE).weights() == undisturbed(2, depth, 4, Mode.BUBBLE).weights()


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("num_pipelines", "num_stages", "num_microbatches", "mode"), CASES)
def test_every_single_loss_in_all_ways(num_pipelines: int, num_stages: int, num_microbatches: int, mode: Mode) -> None:
    lose_everywhere((num_pipelines, num_stages, num_microbatches, mode), all_ways=True)


def test_a_cut_of_the_layers_does_not_change_the_sums() -> None:
    whole = undisturbed(1, 2, 3, Mode.OFF, 3)
    for num_stages, layers_per_stage in ((3, 2), (6, 1)):
        assert undisturbed(1, num_stages, 3, Mode.BUBBLE, layers_per_stage).weights() == whole.weights()


def test_without_shadows_nothing_redundant_is_computed() -> None:
    world = undisturbed(1, 3, 3, Mode.OFF)
    assert sum(c.num_forwards for c in world.computes.values()) == 3 * 3 * NUM_STEPS


@pytest.mark.parametrize("every_pair", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_a_link_that_drops_everything_and_comes_back_costs_nothing_but_time(every_pair: bool) -> None:
    # given two pipelines of three stages, and a link (one of each in turn) that loses what is under way at a boundary
    reference = undisturbed(2, 3, 3, Mode.BUBBLE)
    pairs = sorted({tuple(sorted(pair)) for pair in reference.links})
    for boundary in range(1, reference.num_actions + 1):
        here = pairs if every_pair else [pairs[(boundary * 7 + k) % len(pairs)] for k in (0, 1)]
        for first, second in here:
            world = start(2, 3, 3, Mode.BUBBLE)
            lose_at(world, boundary)
            # when the link breaks, stays away until nothing moves, and is made again
            world.links[first, second].clear()
            world.links[second, first].clear()
            world.cut.add(frozenset((first, second)))
            world.run()
            world.cut.clear()
            world.executors[first].link_up(second)
            world.executors[second].link_up(first)
            world.run()
            # then nothing is missing
            check(world, reference)


@pytest.mark.parametrize("mode", list(Mode))
def test_a_peer_that_gets_the_first_plan_later_than_its_link_misses_nothing(mode: Mode) -> None:
    # given a worker that adopts the plan, and works, before it has a link; its peer then gets the link, but no plan yet
    reference = undisturbed(1, 2, 3, mode, 2)
    world = World(4, 3, NUM_STEPS, tied=True)
    first, second = worker_name(0, 0), worker_name(0, 1)
    world.add_worker(first)
    plan = grid_plan(1, 2, 3, 2, mode)
    world.adopt(plan)
    world.run()
    world.add_worker(second)
    for one, other in ((first, second), (second, first)):
        world.executors[one].link_up(other)
    world.run()
    # when the plan arrives there too
    world.adopt(plan)
    world.run()
    # then nothing is missing
    check(world, reference)


@pytest.mark.parametrize("seed", range(40))
def test_a_loss_among_slow_links_ends_with_the_undisturbed_sums(seed: int) -> None:
    # given links that hold frames back, so that what a victim sent arrives at some peers long before others,
    # and, mostly, a layer without parameters
    rng = random.Random(seed)
    modes = (Mode.LAZY, Mode.BUBBLE, Mode.EAGER, Mode.FULL)
    bare = ((), (0,), (1,), (2,))[seed % 4]
    tied = seed // 4 % 2 == 0
    size = (1 + seed // 8 % 2, rng.choice((2, 3, 3)), rng.choice((2, 3)), rng.choice(modes), 1, bare, tied)
    reference = undisturbed(*size)
    for boundary in range(1, reference.num_actions + 1):
        world = start(*size)
        world.slowness = random.Random(seed * 1009 + boundary)
        victim, _ = lose_at(world, boundary)
        others = [w for w in world.executors if w != victim]
        # when the victim goes and each link delivers the rest of its frames or not
        world.lose(victim, [w for w in others if rng.random() < 0.5])
        recover(world, victim, rng.choice([None, *others]))
        # then nothing shows of it
        check(world, reference)
