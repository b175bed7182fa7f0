"""What the coordinator notices at the cloud, and takes from it on purpose."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from bamboo_trainer.plan import NodeId
from sqlalchemy import Connection

from bamboo_cli.coordinator import cloud as cloud_module
from bamboo_cli.coordinator import journal, reader, store
from bamboo_cli.coordinator.events import (
    InstanceEnded,
    InstanceSeen,
)
from bamboo_cli.errors import InstanceGoneError, StateError
from bamboo_cli.providers.base import EndReason, Instance, InstanceState
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
from tests.waiting import until

__all__ = ["look_often", "scene"]


def test_a_preemption_is_noticed_once_with_its_moment_and_ends_the_bill(scene: Scene, cluster_dir: Path) -> None:
    async def scenario() -> None:
        await scene.create()
        scene.now += 1800
        await scene.cloud.preempt(NodeId("n1"), None)
        scene.now += 5
        await watching(scene, lambda: bool(scene.events(InstanceEnded)), "the end")
        await look_twice(scene)

    play(scenario)

    assert scene.events(InstanceEnded) == [
        InstanceEnded(node_id=NodeId("n1"), reason=EndReason.PREEMPTED, at=START + 1800)
    ]
    assert reader.read_status(store.state_path(cluster_dir), now=START + 9999).spot_microusd == 150_000


def test_a_preemption_with_notice_is_asked_for_with_the_usual_notice(scene: Scene) -> None:
    async def scenario() -> None:
        await scene.create()
        await scene.cloud.drill(NodeId("n1"), notice=True)

    play(scenario)

    assert scene.provider.notices == [("i-1", 30.0)]


def test_preempting_a_node_without_an_instance_is_refused_and_as_a_drill_told(scene: Scene) -> None:
    async def scenario() -> None:
        with pytest.raises(InstanceGoneError):
            await scene.cloud.preempt(NodeId("n7"), None)
        await scene.cloud.drill(NodeId("n7"), notice=False)

    play(scenario)

    assert ["n7 has no instance" in line.text for line in scene.told] == [True]


def test_a_hint_that_a_machine_may_be_gone_is_followed_by_a_look(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryCloud, "poll_s", SELDOM_S)

    async def scenario() -> None:
        task = asyncio.create_task(scene.cloud.watch())
        await until(lambda: scene.provider.num_looks == 1, "the first look")
        scene.cloud.look_at_once()
        await until(lambda: scene.provider.num_looks == 2, "another")
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    play(scenario)


@pytest.mark.parametrize("ahead_s", [600.0, -600.0])
def test_what_is_not_listed_yet_is_missing_by_our_clock_and_not_by_the_clouds(scene: Scene, ahead_s: float) -> None:
    scene.provider.clock = lambda: scene.now - ahead_s

    async def scenario() -> None:
        await scene.create()
        scene.provider.forget()
        await look_twice(scene)
        assert scene.events(InstanceEnded) == [], "EC2 may not list it at once"
        scene.now += 121.0
        await watching(scene, lambda: bool(scene.events(InstanceEnded)), "the end")

    play(scenario)


def test_what_ended_while_the_coordinator_was_away_is_noticed_and_billed_to_its_end(
    scene: Scene, cluster_dir: Path
) -> None:
    later = scene

    async def scenario() -> None:
        nonlocal later
        await scene.create(1)
        await scene.create(2)
        scene.now += 3600
        scene.provider.terminate(("i-1",))
        scene.now += 3600
        later = again(scene)
        await watching(later, lambda: len(later.heard) >= 2, "both")
        even_later = again(later)
        await watching(even_later, lambda: bool(even_later.events(InstanceSeen)), "the one that is left")
        assert even_later.events(InstanceEnded) == []

    play(scenario)

    assert later.events(InstanceEnded) == [InstanceEnded(node_id=NodeId("n1"), reason=EndReason.USER, at=START + 3600)]
    assert [e.instance.instance_id for e in later.heard if isinstance(e, InstanceSeen)] == ["i-2"]
    charges = reader.read_charges(store.state_path(cluster_dir), now=START + 7200)
    assert [(charge.instance_id, charge.seconds) for charge in charges] == [("i-1", 3600.0), ("i-2", 7200.0)]


def test_an_instance_that_came_and_went_unseen_is_on_the_bill(scene: Scene, cluster_dir: Path) -> None:
    async def scenario() -> None:
        scene.provider.lose_answer = True
        await scene.create()
        scene.now += 360
        scene.provider.terminate(("i-1",))
        later = again(scene)
        await watching(later, lambda: bool(later.heard), "its end")

    play(scenario)

    (charge,) = reader.read_charges(store.state_path(cluster_dir), now=START + 9999)
    assert (charge.seconds, charge.spot_microusd) == (360.0, 30_000)


def test_what_is_no_longer_listed_is_gone_but_not_at_once(scene: Scene) -> None:
    async def scenario() -> None:
        await scene.create()
        scene.provider.forget()
        await look_twice(scene)
        assert scene.events(InstanceEnded) == []
        scene.now += cloud_module.MISSING_S + 1
        await watching(scene, lambda: bool(scene.events(InstanceEnded)), "the verdict")

    play(scenario)

    assert [e.reason for e in scene.heard if isinstance(e, InstanceEnded)] == [EndReason.NONE]


def test_a_gap_in_the_list_of_what_was_there_for_long_is_no_end(scene: Scene) -> None:
    async def scenario() -> None:
        await scene.create()
        await look_twice(scene)
        scene.now += 3600
        await look_twice(scene)
        there = dict(scene.provider.made)
        scene.provider.forget()
        await look_twice(scene)
        scene.provider.made.update(there)
        scene.now += 60
        await look_twice(scene)

    play(scenario)

    assert scene.events(InstanceEnded) == []


def test_a_clock_that_was_set_back_while_the_coordinator_was_away_does_not_put_off_a_verdict(scene: Scene) -> None:
    async def scenario() -> None:
        await scene.create()
        scene.now -= 7200
        scene.provider.forget()
        later = again(scene)
        await look_twice(later)
        later.now += cloud_module.MISSING_S + 1
        await watching(later, lambda: bool(later.events(InstanceEnded)), "the verdict")

    play(scenario)


def test_what_was_taken_for_gone_and_is_listed_again_is_seen_and_paid_for(scene: Scene, cluster_dir: Path) -> None:
    async def scenario() -> None:
        await scene.create()
        there = dict(scene.provider.made)
        scene.provider.forget()
        scene.now += cloud_module.MISSING_S + 1
        await watching(scene, lambda: bool(scene.events(InstanceEnded)), "the verdict")
        scene.provider.made.update(there)
        await watching(scene, lambda: bool(scene.events(InstanceSeen)), "its return")

    play(scenario)

    (charge,) = reader.read_charges(store.state_path(cluster_dir), now=START + 3600)
    assert charge.seconds == 3600.0


def test_an_end_that_could_not_be_written_down_is_noticed_by_the_next_look(
    scene: Scene, cluster_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.provider.lose_answer = True
    record, refused = journal.record_instance, []

    def once_refused(connection: Connection, instance: Instance) -> None:
        if not refused:
            refused.append(instance)
            raise StateError("the disk is full")
        record(connection, instance)

    async def scenario() -> None:
        await scene.create()
        scene.now += 360
        scene.provider.terminate(("i-1",))
        monkeypatch.setattr(journal, "record_instance", once_refused)
        await watching(scene, lambda: bool(scene.events(InstanceEnded)), "its end")

    play(scenario)

    (charge,) = reader.read_charges(store.state_path(cluster_dir), now=START + 9999)
    assert charge.seconds == 360.0


def test_a_cloud_that_does_not_answer_is_told_of_once_per_trouble(scene: Scene) -> None:
    async def scenario() -> None:
        task = asyncio.create_task(scene.cloud.watch())
        with scene.provider.out_of_order():
            await until(lambda: scene.provider.num_looks >= 4, "several tries")
        await until(lambda: len(scene.told) == 2, "the end of the trouble")
        with scene.provider.out_of_order():
            await until(lambda: len(scene.told) == 3, "the next trouble")
        task.cancel()

    play(scenario)

    trouble = "the cloud does not do as it is asked: the cloud is out of order; goes on trying"
    assert [line.text for line in scene.told] == [trouble, "the cloud does as it is asked again", trouble]
    assert scene.heard == []


def test_running_instances_are_not_reported_again_while_nothing_changes(scene: Scene) -> None:
    async def scenario() -> None:
        await scene.create()
        scene.provider.made["token-1"] = replace(scene.provider.made["token-1"], state=InstanceState.ENDING)
        await watching(scene, lambda: bool(scene.events(InstanceSeen)), "the change")
        await look_twice(scene)

    play(scenario)

    assert len(scene.events(InstanceSeen)) == 1
