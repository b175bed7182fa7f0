"""How the coordinator gives nodes back, also those of which it is not known what came of them."""

import asyncio
import threading
from typing import Any

import pytest
from bamboo_trainer.plan import NodeId

from bamboo_cli.coordinator import cloud as cloud_module
from bamboo_cli.coordinator.events import (
    CreateFailed,
    CreateFault,
    InstanceEnded,
)
from bamboo_cli.providers.base import EndReason, Instance
from tests.coordinator.cloud_scene import (
    SELDOM_S,
    START,
    Scene,
    again,
    look_often,
    look_twice,
    play,
    scene,
    watching,
)
from tests.coordinator.memory_cloud import MemoryCloud
from tests.waiting import turn

__all__ = ["look_often", "scene"]


def hold_creates(provider: MemoryCloud) -> threading.Event:
    """None is done before the event is set."""
    may_go_on, create = threading.Event(), provider.create

    def held(*arguments: Any) -> Instance:
        may_go_on.wait(20)
        return create(*arguments)

    provider.create = held  # type: ignore[method-assign]
    return may_go_on


def test_what_is_given_back_is_terminated_and_then_said_to_have_ended(scene: Scene) -> None:
    async def scenario() -> None:
        await scene.create()
        scene.cloud.terminate(NodeId("n1"))
        await watching(scene, lambda: bool(scene.events(InstanceEnded)), "the end")

    play(scenario)

    assert scene.provider.alive() == []
    assert [(e.node_id, e.reason) for e in scene.heard if isinstance(e, InstanceEnded)] == [("n1", EndReason.USER)]


def test_what_was_just_given_back_is_looked_at_again_soon(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryCloud, "poll_s", SELDOM_S)
    monkeypatch.setattr(cloud_module, "SOON_S", 0.005)

    async def scenario() -> None:
        await scene.create()
        scene.cloud.terminate(NodeId("n1"))
        await watching(scene, lambda: bool(scene.events(InstanceEnded)), "the end")

    play(scenario)


def test_giving_back_what_never_was_is_answered_too(scene: Scene) -> None:
    async def scenario() -> None:
        scene.cloud.terminate(NodeId("n5"))
        await watching(scene, lambda: bool(scene.heard), "the answer")

    play(scenario)

    assert scene.heard == [InstanceEnded(node_id=NodeId("n5"), reason=EndReason.USER, at=START)]


def test_what_waits_for_its_turn_and_is_not_wanted_any_more_is_never_asked_for(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cloud_module, "MAX_CREATES", 1)
    later = again(scene)
    first_may_go_on = hold_creates(later.provider)

    async def scenario() -> None:
        both = [asyncio.create_task(later.create(number)) for number in (1, 2)]
        await turn()
        later.cloud.terminate(NodeId("n2"))
        first_may_go_on.set()
        await asyncio.gather(*both)

    play(scenario)
    assert [instance.node_id for instance in later.provider.alive()] == ["n1"]
    (failed,) = later.events(CreateFailed)
    assert isinstance(failed, CreateFailed) and failed.fault is CreateFault.REFUSED


def test_a_node_that_is_given_back_while_it_is_rented_is_not_said_to_be_gone_before_it_is(scene: Scene) -> None:
    """The cluster would be closed, and then the answer would come."""
    may_go_on = hold_creates(scene.provider)

    async def scenario() -> None:
        renting = asyncio.create_task(scene.create())
        await turn()
        scene.cloud.terminate(NodeId("n1"))
        await look_twice(scene)
        too_early = scene.events(InstanceEnded)
        may_go_on.set()
        await renting
        assert too_early == []
        await watching(scene, lambda: bool(scene.events(InstanceEnded)), "the end")

    play(scenario)
    assert scene.provider.made and scene.provider.alive() == []


def test_what_may_have_come_of_a_lost_answer_is_not_forgotten_when_its_node_is_given_back_in_the_queue(
    scene: Scene,
) -> None:
    scene.provider.lose_answer = True

    async def scenario() -> None:
        await scene.create()
        scene.cloud.terminate(NodeId("n1"))
        await scene.create()

    play(scenario)
    faults = [failed.fault for failed in scene.events(CreateFailed) if isinstance(failed, CreateFailed)]
    assert faults == [CreateFault.CLOUD, CreateFault.CLOUD], "that nothing came of it is not known"


def test_what_may_have_come_of_a_lost_answer_is_waited_for_before_its_node_is_said_to_be_gone(scene: Scene) -> None:
    """EC2 lists a new instance late. One that nobody looked for again would cost money for ever."""
    scene.provider.unlisted_s = 120.0
    scene.provider.lose_answer = True

    async def scenario() -> None:
        await scene.create()
        made = dict(scene.provider.made)
        scene.provider.forget()
        scene.cloud.terminate(NodeId("n1"))
        await look_twice(scene)
        assert scene.events(InstanceEnded) == []
        scene.provider.made.update(made)
        await watching(scene, lambda: bool(scene.events(InstanceEnded)), "the end")

    play(scenario)
    assert scene.provider.alive() == []


def test_a_lost_answer_of_which_nothing_came_is_not_waited_for_for_ever_nor_forgotten_by_the_next_coordinator(
    scene: Scene,
) -> None:
    scene.provider.unlisted_s = 120.0
    scene.provider.lose_answer = True
    later = scene

    async def scenario() -> None:
        nonlocal later
        await scene.create()
        scene.provider.forget()
        later = again(scene)
        later.cloud.terminate(NodeId("n1"))
        await look_twice(later)
        assert later.events(InstanceEnded) == []
        later.now += 121.0
        await watching(later, lambda: bool(later.events(InstanceEnded)), "the end")

    play(scenario)
