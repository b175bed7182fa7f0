"""The bastion is down: no node is lost for it, none is rented, and there is an end to waiting."""

from dataclasses import replace

from bamboo_trainer.plan import NodeId

from bamboo_cli.coordinator import events as ev
from bamboo_cli.coordinator.states import NodeState
from bamboo_cli.coordinator.way import RETURN_S
from bamboo_cli.providers.base import EndReason
from bamboo_cli.remote.settings import BASTION_STEP
from tests.coordinator.test_preparation import CONFIG, Scene

LEASE_S = 10.0
LOST = ev.WayLost(bastion="me@host", detail="Connection refused")
FOUND = ev.WayFound(bastion="me@host")


def scene(*, way_patience_s: float = 3600.0) -> Scene:
    """Two nodes that have joined."""
    made = Scene(config=replace(CONFIG, lease_s=LEASE_S, uplink_patience_s=60.0, way_patience_s=way_patience_s))
    for node_id in ("n1", "n2"):
        made.join(node_id)
    return made


def states(scene: Scene) -> dict[str, NodeState]:
    return {str(node.node_id): node.state for node in scene.machine.board.in_order()}


def lose_the_way(scene: Scene) -> None:
    scene.handle(LOST)
    for node_id in ("n1", "n2"):
        scene.handle(ev.AgentDropped(node_id=NodeId(node_id)))


def test_as_long_as_the_bastion_is_down_no_node_is_blamed_for_its_silence() -> None:
    s = scene()
    lose_the_way(s)
    s.wait(3000)

    assert states(s) == {"n1": NodeState.JOINED, "n2": NodeState.JOINED}
    assert any("the bastion me@host cannot be reached: Connection refused" in text for text in s.told)
    assert not any("is the network here down" in text for text in s.told), "it is known what is down"


def test_when_it_is_back_every_node_has_the_time_to_come_back() -> None:
    s = scene()
    lose_the_way(s)
    s.wait(200)
    s.handle(FOUND)
    s.join("n1")
    for _ in range(int(RETURN_S)):
        s.handle(ev.AgentBeat(node_id=NodeId("n1"), silence_s={}))
        s.wait(1)
    assert states(s) == {"n1": NodeState.JOINED, "n2": NodeState.JOINED}
    assert "the bastion me@host is back after 200 s" in s.told

    for _ in range(int(LEASE_S) + 2):
        s.handle(ev.AgentBeat(node_id=NodeId("n1"), silence_s={}))
        s.wait(1)
    assert states(s)["n2"] is NodeState.LOST, "now the way is there, and it is silent"


def test_what_the_cloud_says_of_a_node_counts_and_none_is_rented_in_its_place_before_the_bastion_is_back() -> None:
    s = scene()
    lose_the_way(s)
    s.handle(ev.InstanceEnded(node_id=NodeId("n1"), reason=EndReason.PREEMPTED, at=s.now))
    s.wait(100)
    assert set(s.rented) == {"n1", "n2"}
    assert states(s)["n1"] is NodeState.ENDED

    s.handle(FOUND)
    s.wait(1)
    assert set(s.rented) == {"n1", "n2", "n3"}


def test_there_is_an_end_to_the_patience_with_it() -> None:
    s = scene(way_patience_s=120.0)
    lose_the_way(s)
    s.wait(110)
    assert set(states(s).values()) == {NodeState.JOINED}
    s.wait(30)
    assert states(s)["n1"] is NodeState.LOST and states(s)["n2"] is NodeState.LOST
    assert set(s.rented) == {"n1", "n2"}, "what is rented now could not be made a node"


def give_up(scene: Scene, *node_ids: str) -> None:
    for node_id in node_ids:
        scene.fail(node_id, BASTION_STEP, "the bastion me@host cannot be reached: Connection refused for 600 s")


def test_machines_that_boot_behind_it_are_given_back_in_the_end_and_the_renting_ends_with_its_words() -> None:
    s = Scene(config=CONFIG)
    s.handle(LOST)
    give_up(s, "n1", "n2")
    s.wait(1000)

    assert s.given_back == ["n1", "n2"] and set(s.rented) == {"n1", "n2"}
    assert "the bastion me@host cannot be reached" in s.machine.board.cluster.gave_up

    s.handle(FOUND)
    s.wait(1)
    assert s.machine.board.cluster.gave_up == ""
    assert set(s.rented) == {"n1", "n2", "n3", "n4"}, "as many as are wanted"


def test_who_gives_up_at_the_very_moment_at_which_it_is_back_does_not_end_the_renting() -> None:
    """Else nothing would begin it again: the bastion is not found twice."""
    s = Scene(config=CONFIG)
    s.handle(LOST)
    s.handle(FOUND)
    give_up(s, "n1")
    s.wait(60)
    assert s.machine.board.cluster.gave_up == ""
    assert set(s.rented) == {"n1", "n2", "n3"}


def test_a_coordinator_that_is_started_again_rents_again_since_nobody_would_tell_it_that_the_bastion_is_back() -> None:
    s = Scene(config=CONFIG)
    s.handle(LOST)
    give_up(s, "n1", "n2")
    assert s.machine.board.cluster.gave_up

    s.handle(ev.Started())
    s.wait(1)
    assert s.machine.board.cluster.gave_up == ""
    assert set(s.rented) == {"n1", "n2", "n3", "n4"}
