"""Checkpoints out of turn, when whoever asked for one dies, or the plan changes, before it is made."""

from bamboo_agent.messages import TellWorker
from bamboo_trainer.control import Save
from bamboo_trainer.plan import NodeId

from bamboo_cli.coordinator import events as ev
from bamboo_cli.coordinator.run_entities import Asked
from bamboo_cli.coordinator.saving import LAST_S
from bamboo_cli.coordinator.states import RunState
from tests.coordinator import scenario
from tests.coordinator.small_world import World


def play(*lines: str) -> World:
    return scenario.play("\n".join(lines))[1]


def asked_of(world: World) -> Asked | None:
    assert world.machine.board.checkpoints is not None
    return world.machine.board.checkpoints.asked


def told_to_save(world: World) -> list[Save]:
    """What is on its way to workers."""
    told = [m.message for node in world.nodes.values() for m in node.inbox if isinstance(m, TellWorker)]
    return [message for message in told if isinstance(message, Save)]


def test_a_coordinator_that_is_killed_when_it_has_asked_asks_again() -> None:
    world = play("cluster nodes=2", "train steps=8 stages=2 every=100", "steps 3")
    world.handle(ev.RequestMade(request_id=2, request=ev.StopRun(run_id="r1")))
    while asked_of(world) is None:
        assert world.pump_once(training=True), "it never asks"
    asked = asked_of(world)
    assert asked is not None and len(told_to_save(world)) == 2

    world.restart()  # nothing of that reaches anybody
    assert not told_to_save(world)
    for node in world.nodes.values():
        world.join(node)
    world.pump(training=False)

    run, checkpoints = world.machine.board.run, world.machine.board.checkpoints
    assert run is not None and checkpoints is not None
    assert (run.state, checkpoints.complete) == (RunState.STOPPED, (asked.step,))
    assert world.now - asked.at < LAST_S / 2, "it did not have to be given up first"


def test_another_plan_before_the_step_is_there_asks_its_members_anew() -> None:
    world = play("cluster nodes=3 zones=a", "train steps=80 stages=3 every=100", "steps 2", "short a")
    for number in (1, 2, 3):
        world.notice(NodeId(f"n{number}"), 100.0)
    while asked_of(world) is None:
        assert world.pump_once(training=False), "it never asks"
    first = asked_of(world)
    assert first is not None
    for node in world.nodes.values():  # of those who were asked, one is lost with what it knew
        node.inbox.clear()
    world.kill_node(NodeId("n2"))

    for _ in range(15):
        world.pump(training=False)
        world.step()
        world.pump(training=False)
        world.pass_time(1.0)

    checkpoints = world.machine.board.checkpoints
    assert checkpoints is not None and checkpoints.complete
    assert world.now - first.at < LAST_S / 2
