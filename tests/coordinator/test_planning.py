"""The planner inside the machine: what it chooses at the start, when it changes a plan, and when it does not."""

import math

import pytest
from bamboo_trainer.arrangement import arrangement_of
from bamboo_trainer.plan import NodeId
from bamboo_trainer.wanted import HORIZON_S, PRIOR_HAZARD

from bamboo_cli.coordinator.entities import SeenLoss
from bamboo_cli.coordinator.events import StoryKind
from bamboo_cli.coordinator.states import RunState
from bamboo_cli.coordinator.weather import hazard, horizon_s, weather
from tests.coordinator import scenario
from tests.coordinator.small_world import World

ALL_AUTO = "pipelines=auto stages=auto mode=auto level=auto"


def play(*lines: str) -> World:
    return scenario.play("\n".join(lines))[1]


def shape_of(world: World) -> tuple[int, ...]:
    assert world.machine.board.run is not None and world.machine.board.run.plan is not None
    return arrangement_of(world.machine.board.run.plan).num_stages


def reconfigurations(world: World) -> list[str]:
    return [told.text for told in world.told if told.kind is StoryKind.RECONFIGURATION]


def train_on(world: World, seconds: float) -> None:
    """A step a second, with what follows from the passing of time."""
    for _ in range(round(seconds)):
        world.pump(training=False)
        world.step()
        world.pump(training=False)
        world.pass_time(1.0)


# --- auto -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "asked",
    [
        ALL_AUTO,
        "stages=auto",
        "pipelines=auto stages=2",
        "pipelines=2 stages=auto mode=auto",
        "mode=auto level=auto",
        "stages=3 mode=lazy level=auto",
    ],
)
@pytest.mark.parametrize("num_nodes", [1, 2, 3, 5])
def test_a_run_with_anything_left_to_the_planner_gets_done(asked: str, num_nodes: int) -> None:
    world = play(f"cluster nodes={num_nodes}", f"train steps=12 {asked}", "steps 2", f"kill n{num_nodes}", "finish")
    assert world.machine.board.run is not None
    assert world.machine.board.run.state is RunState.DONE


def test_the_first_plan_says_what_was_chosen_over_what() -> None:
    world = play("cluster nodes=4", f"train steps=8 {ALL_AUTO}", "steps 1")
    assert world.machine.board.run is not None and world.machine.board.run.plan is not None
    reason = world.machine.board.run.plan.reason
    assert reason.startswith("the run begins; 4 workers for ")
    assert "% more than" in reason


def test_a_fixed_number_of_pipelines_is_kept_by_the_planner() -> None:
    world = play("cluster nodes=5", "train steps=8 pipelines=2 stages=auto", "steps 1")
    assert len(shape_of(world)) == 2


def test_with_auto_a_loss_is_followed_by_the_best_plan_over_what_is_left() -> None:
    world = play("cluster nodes=4 replace=no", "train steps=20 stages=auto", "steps 1", "kill n1", "steps 6")
    assert sum(shape_of(world)) in (2, 3)
    assert any("lacks a shadow" in text for text in reconfigurations(world))


def test_a_node_that_helps_is_taken_in_with_the_gain_as_the_reason() -> None:
    world = play("cluster nodes=3 zones=a", "train steps=40 stages=auto", "steps 1", "short a", "kill n3", "steps 3")
    assert sum(shape_of(world)) == 2
    world.short_zones = set()
    train_on(world, 12.0)
    assert sum(shape_of(world)) == 3
    assert any("3 nodes should commit" in text and "% more" in text for text in reconfigurations(world))


def test_with_auto_no_loss_costs_more_than_a_step_while_nodes_go_one_by_one() -> None:
    """Given a job that leaves all to the planner and has standbys, when nodes are lost in quick succession."""
    world = play("cluster nodes=5", f"train steps=400 {ALL_AUTO} every=0", "steps 5")
    for _ in range(6):
        train_on(world, 15.0)
        run = world.machine.board.run
        assert run is not None and run.plan is not None
        world.kill_node(NodeId(run.plan.stage(0, 0).host.partition("/")[0]))
    train_on(world, 30.0)
    progress = world.machine.board.progress
    assert progress is not None
    assert (progress.restores, progress.steps_rerun) == (0, 0)


def test_a_bare_pipeline_saves_more_often_once_nodes_are_lost_more_often_than_was_expected() -> None:
    world = play("cluster nodes=3", "train steps=4000 stages=3 mode=off every=0", "steps 5")
    run = world.machine.board.run
    assert run is not None and run.training is not None
    for _ in range(5):
        train_on(world, 40.0)
        assert world.machine.board.run is not None and world.machine.board.run.plan is not None
        world.kill_node(NodeId(world.machine.board.run.plan.stage(0, 0).host.partition("/")[0]))
    train_on(world, 60.0)
    asked = [told.text for told in world.told if "lost more often than was expected" in told.text]
    assert len(asked) >= 2
    assert world.machine.board.checkpoints is not None and world.machine.board.progress is not None
    newest = max(world.machine.board.checkpoints.complete)
    assert world.machine.board.progress.committed_step - newest < run.training.checkpoint_every / 2


def test_auto_makes_some_checkpoints_in_a_run_however_short() -> None:
    world = play("cluster nodes=2", "train steps=120 stages=2 every=0", "steps 1")
    assert world.machine.board.run is not None and world.machine.board.run.training is not None
    assert world.machine.board.run.training.checkpoint_every <= 30


# --- no thrash --------------------------------------------------------------------------------------------------


def comes_and_goes(asked: str, times: int, every_s: float) -> World:
    """The third node is lost again and again, and another comes at once each time."""
    world = play("cluster nodes=3", f"train steps=4000 {asked} every=100", "steps 2")
    for _ in range(times):
        train_on(world, every_s)
        live = [n for n in world.nodes.values() if not n.gone]
        world.kill_node(live[-1].node_id)
    return world


@pytest.mark.parametrize("asked", ["stages=3", "stages=auto", ALL_AUTO])
def test_a_node_that_comes_and_goes_every_few_seconds_is_soon_left_standing_by(asked: str) -> None:
    few, many = (comes_and_goes(asked, times, 4.0) for times in (4, 24))
    assert len(reconfigurations(many)) <= len(reconfigurations(few)) + 1, "20 more comings and goings change nothing"
    assert many.machine.board.progress is not None
    assert many.machine.board.progress.steps_rerun == 0


def test_a_plan_says_who_is_left_standing_by_and_why() -> None:
    world = comes_and_goes("stages=3", 6, 4.0)
    told = next(text for text in reconfigurations(world) if "2 workers for 1 x 2 stages" in text)
    assert told.endswith("; n6 stands by until nodes are lost less often")


def test_when_it_stays_at_last_it_is_taken_in() -> None:
    world = comes_and_goes("stages=3", 10, 4.0)
    assert shape_of(world) == (2,)
    train_on(world, 120.0)
    assert shape_of(world) == (3,)


def test_a_lost_stage_is_filled_though_nodes_are_lost_faster_than_they_boot() -> None:
    """A score that losses can bring down to nothing would find nothing worth while."""
    world = comes_and_goes("stages=3", 3, 30.0)
    train_on(world, 10.0)
    assert weather(world.machine.board).hazard > 30.0, "an hour of each node holds so many losses"
    assert shape_of(world) == (3,)


def test_a_node_that_stays_for_minutes_each_time_is_worth_its_price() -> None:
    world = comes_and_goes("stages=3", 5, 200.0)
    train_on(world, 100.0)
    assert shape_of(world) == (3,)


def test_standbys_that_were_there_all_along_take_over_however_fast_nodes_are_lost() -> None:
    world = play("cluster nodes=9 replace=no", "train steps=4000 stages=3", "steps 2")
    for _ in range(5):
        train_on(world, 2.0)
        run = world.machine.board.run
        assert run is not None and run.plan is not None
        world.kill_node(NodeId(run.plan.stage(0, 1).host.partition("/")[0]))
        train_on(world, 4.0)
        assert shape_of(world) == (3,)


# --- what was seen ----------------------------------------------------------------------------------------------


def test_the_hazard_is_the_prior_until_losses_are_seen_and_falls_with_calm() -> None:
    world = play("cluster nodes=3", "train steps=4000 stages=3")
    board = world.machine.board
    assert hazard(board) == pytest.approx(PRIOR_HAZARD, rel=0.01)
    world.kill_node(NodeId("n3"))
    world.pump(training=False)
    after = hazard(board)
    assert after == pytest.approx(2 * PRIOR_HAZARD, rel=0.01)
    train_on(world, 300.0)
    assert hazard(board) < after
    assert math.log2(weather(board).hazard) * 2 == pytest.approx(round(math.log2(weather(board).hazard) * 2))


def test_a_loss_counts_once_whoever_tells_of_it() -> None:
    world = play("cluster nodes=3", "train steps=40 stages=3", "steps 1", "kill n3")
    assert [(loss.node_id, loss.incarnation) for loss in world.machine.board.cluster.losses] == [("n3", 1)]


def test_the_horizon_is_as_long_as_it_has_been_calm_after_losses_that_make_a_pattern() -> None:
    world = play("cluster nodes=3", "train steps=40 stages=3")
    board = world.machine.board

    def after(*ago_s: float) -> float:
        losses = tuple(SeenLoss(node_id=NodeId("n1"), incarnation=i, at=board.now - s) for i, s in enumerate(ago_s))
        object.__setattr__(board.cluster, "losses", losses)
        return horizon_s(board)

    assert after() == after(50.0) == after(50.0, 1.0) == HORIZON_S
    assert after(21.0, 11.0, 1.0) == pytest.approx(10.0)
    assert after(90.0, 80.0, 70.0) == pytest.approx(70.0)
    assert after(9.0, 9.0, 8.5, 8.0) == HORIZON_S, "a burst is one loss"
