"""The coordinator's machine and the step protocol together: losses at every action, with restarts."""

from collections.abc import Callable

import pytest
from bamboo_trainer.plan import WorkerId
from bamboo_trainer.schedule import Action

from bamboo_cli.coordinator.states import RunReason, RunState
from tests.trainer.machine_world import MachineWorld

Striker = Callable[[WorkerId, Action], bool]


def check(world: MachineWorld, reference: MachineWorld) -> None:
    assert world.state is RunState.DONE, "\n".join(world.story[-20:])
    assert world.final_weights() == reference.final_weights()
    assert world.steps == reference.steps, "every step is recorded, with the undisturbed loss"


def undisturbed(**size: object) -> MachineWorld:
    world = MachineWorld(**size)  # type: ignore[arg-type]
    world.run()
    assert world.state is RunState.DONE
    return world


def lose_at(world: MachineWorld, *boundaries: int) -> Striker:
    """Loses the node whose turn it is at each of these actions (counted over all workers)."""

    def strike(worker_id: WorkerId, action: Action) -> bool:
        if world.world.num_actions in boundaries and len(world.world.executors) > 1:
            world.lose_node(worker_id)
            return True
        return False

    return strike


SIZES = [
    {"num_pipelines": 1, "num_stages": 3},
    {"num_pipelines": 2, "num_stages": 2},
    {"num_pipelines": 2, "num_stages": 2, "num_microbatches": 6, "num_steps": 3},
]


@pytest.mark.parametrize("replace_nodes", [True, False])
@pytest.mark.parametrize("size", SIZES, ids=["1x3", "2x2", "2x2 with help"])
def test_a_loss_at_every_action_ends_with_the_undisturbed_weights(size: dict[str, int], replace_nodes: bool) -> None:
    # given a run of four steps, and, without replacement, a cut over fewer nodes after the loss
    reference = undisturbed(**size)
    num_helped = 0
    for boundary in range(1, reference.world.num_actions + 1):
        world = MachineWorld(**size, replace_nodes=replace_nodes, seed=boundary)
        # when the node whose turn it is vanishes
        world.run(lose_at(world, boundary))
        # then no step was run again, and nothing shows of it, as long as the number of pipelines is the same
        progress = world.machine.board.progress
        assert progress is not None and progress.steps_rerun == 0, boundary
        num_helped += any(" microbatches" in line for line in world.story)
        if size["num_pipelines"] == 1 or replace_nodes:
            check(world, reference)
        else:
            assert world.state is RunState.DONE
    assert (num_helped > 0) == (size["num_pipelines"] == 2)


@pytest.mark.parametrize("size", SIZES[:2], ids=["1x3", "2x2"])
def test_steps_whose_reporter_was_lost_while_the_coordinator_was_away_are_told_by_another(size: dict[str, int]) -> None:
    reference = MachineWorld(**size, num_steps=8)
    reference.run()
    world = MachineWorld(**size, num_steps=8)

    # given a coordinator that dies after a step, and three more steps that are told to nobody but the reporter's agent
    def strike(worker_id: WorkerId, action: Action) -> bool:
        executor = world.world.executors[worker_id]
        if not world.is_away and not came_back and executor.step == 2:
            world.leave()
        # when the reporter's node vanishes, and the coordinator comes back
        if world.is_away and executor.step == 5 and executor.plan is not None and worker_id == executor.plan.reporter:
            world.lose_node(worker_id)
            world.restart_coordinator()
            came_back.append(worker_id)
            return True
        return False

    came_back: list[WorkerId] = []
    world.run(strike)

    # then the ledger has every step, with the losses of the undisturbed run
    assert came_back and world.steps == reference.steps
    assert sorted(world.steps) == list(range(8))
    check(world, reference)


def test_the_coordinator_restarted_before_any_event_changes_nothing() -> None:
    reference = undisturbed(num_pipelines=1, num_stages=3)
    for number in range(2, reference.num_events):
        world = MachineWorld(num_pipelines=1, num_stages=3, restarts=(number,))
        world.run()
        check(world, reference)
        progress = world.machine.board.progress
        assert progress is not None and (progress.failovers, progress.restores) == (0, 0)
        assert len(world.nodes) == 3, "no node was rented or given back because of it"


def test_the_coordinator_restarted_before_any_event_of_a_failover_changes_nothing() -> None:
    reference = undisturbed(num_pipelines=1, num_stages=3)
    boundary = reference.world.num_actions // 2
    struck = MachineWorld(num_pipelines=1, num_stages=3)
    struck.run(lose_at(struck, boundary))
    for number in range(2, struck.num_events):
        world = MachineWorld(num_pipelines=1, num_stages=3, restarts=(number,))
        world.run(lose_at(world, boundary))
        check(world, reference)


@pytest.mark.parametrize("boundary", range(5, 60, 6))
def test_a_noticed_node_leaves_at_a_boundary_and_no_step_runs_twice(boundary: int) -> None:
    reference = undisturbed(num_pipelines=1, num_stages=3)
    world = MachineWorld(num_pipelines=1, num_stages=3)

    def strike(worker_id: WorkerId, action: Action) -> bool:
        if world.world.num_actions == boundary:
            world.notice(worker_id, 120.0)
        return False

    world.run(strike)
    check(world, reference)
    progress = world.machine.board.progress
    assert progress is not None
    assert (progress.steps_rerun, progress.failovers, progress.restores) == (0, 0, 0)


@pytest.mark.parametrize("num_failures", [1, 3, 5])
def test_the_last_checkpoint_is_saved_again_while_the_nodes_hold_the_weights(num_failures: int) -> None:
    """Given a layer that cannot be written ``num_failures`` times, then the run still ends with the same weights."""
    reference = undisturbed(num_pipelines=2, num_stages=2)
    world = MachineWorld(num_pipelines=2, num_stages=2)
    failures = iter(range(num_failures))
    last = world.world.spec.num_steps - 1
    world.save_fails = lambda step, layer: (step, layer) == (last, 1) and next(failures, None) is not None

    world.run()

    check(world, reference)
    assert next(failures, None) is None
    assert world.machine.board.progress is not None
    assert world.machine.board.progress.reconfigurations == world.machine.board.progress.failovers == 0


def test_a_last_checkpoint_that_can_never_be_written_fails_the_run_with_all_its_steps() -> None:
    world = MachineWorld(num_pipelines=1, num_stages=3)
    last = world.world.spec.num_steps - 1
    world.save_fails = lambda step, layer: step == last
    began = world.now

    world.run()

    run, progress = world.machine.board.run, world.machine.board.progress
    assert run is not None and progress is not None
    assert (run.state, run.reason) == (RunState.FAILED, RunReason.CHECKPOINT_UNWRITABLE)
    assert run.detail == "the last checkpoint could not be written in 6 tries: no space"
    assert progress.committed_step == last
    assert 30.0 < world.now - began < 60.0
