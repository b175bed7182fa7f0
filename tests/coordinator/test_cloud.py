"""What the coordinator does at the cloud, and what it notices there."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from bamboo_trainer.plan import NodeId
from sqlalchemy import Connection, Engine, Row, select

from bamboo_cli.coordinator import cloud as cloud_module
from bamboo_cli.coordinator import journal, reader, schema, store
from bamboo_cli.coordinator.cloud import Cloud
from bamboo_cli.coordinator.events import (
    CreateFailed,
    CreateFault,
    CreateInstance,
    CreateSucceeded,
    Event,
    InstanceEnded,
    InstanceSeen,
    Tell,
)
from bamboo_cli.errors import CapacityError, CloudError, CredentialsError, InstanceGoneError, QuotaError, StateError
from bamboo_cli.providers.base import EndReason, Instance, InstanceState, NodeConfig, Offer
from tests.coordinator.memory_cloud import MemoryCloud, offer
from tests.waiting import turn, until

START = 1_790_000_000.0
CLUSTER = "demo-1"


@pytest.fixture(autouse=True)
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryCloud, "poll_s", 0.005)
    monkeypatch.setattr(cloud_module, "MAX_POLL_S", 0.02)


@dataclass
class Scene:
    """One coordinator at the cloud, its clock in our hand. What it hears is written down as the service would."""

    provider: MemoryCloud
    engine: Engine
    now: float = START
    heard: list[Event] = field(default_factory=list)
    told: list[Tell] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.provider.clock = lambda: self.now
        self.cloud = Cloud(
            provider=self.provider,
            engine=self.engine,
            cluster_id=CLUSTER,
            node_config=self._node_config,
            notice_s=30.0,
            clock=lambda: self.now,
            hear=self._hear,
            tell=self.told.append,
        )

    async def create(self, number: int = 1, zone: str = "a") -> None:
        await self.cloud.create(CreateInstance(node_id=NodeId(f"n{number}"), zone=zone, token=f"token-{number}"))

    def events(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.heard if isinstance(event, kind)]

    def instances(self) -> list[Row[Any]]:
        with store.writing(self.engine) as connection:
            return list(connection.execute(select(schema.instances)))

    def _hear(self, event: Event) -> None:
        self.heard.append(event)
        with store.writing(self.engine) as connection:
            journal.record(connection, event, {}, (), self.now)

    def _node_config(self, node_id: NodeId) -> NodeConfig:
        return NodeConfig(
            cluster_id=CLUSTER, node_id=node_id, coordinator_address="127.0.0.1", coordinator_port=1, secret="s"
        )


@pytest.fixture
def scene(cluster_dir: Path) -> Scene:
    """Its event loop comes with ``play``."""
    return Scene(provider=MemoryCloud(), engine=store.open_for_writing(store.state_path(cluster_dir)))


def again(scene: Scene) -> Scene:
    """The coordinator was killed and started anew; what it had heard and not written down is gone."""
    return Scene(provider=scene.provider, engine=scene.engine, now=scene.now)


def play(scenario: Callable[[], Awaitable[None]]) -> None:
    async def in_time() -> None:
        async with asyncio.timeout(20):
            await scenario()

    asyncio.run(in_time())


async def watching(scene: Scene, until_then: Callable[[], bool], what: str) -> None:
    task = asyncio.create_task(scene.cloud.watch())
    await until(lambda: until_then() or task.done(), what)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def look_twice(scene: Scene) -> None:
    """What the first of them saw has been handled when the second begins."""
    enough = scene.provider.num_looks + 2
    await watching(scene, lambda: scene.provider.num_looks >= enough, "two looks")


def test_an_instance_is_rented_and_billed_from_its_launch(scene: Scene, cluster_dir: Path) -> None:
    play(scene.create)

    (event,) = scene.heard
    assert isinstance(event, CreateSucceeded) and event.instance.node_id == "n1"
    (charge,) = reader.read_charges(store.state_path(cluster_dir), now=START + 3600)
    assert (charge.instance_id, charge.spot_microusd, charge.on_demand_microusd) == ("i-1", 300_000, 1_000_000)


def test_the_first_offer_of_the_zone_is_taken(scene: Scene) -> None:
    scene.provider.market = (offer("b", 0.1), replace(offer("a", 0.5), instance_type="first"), offer("a", 0.2))

    play(scene.create)

    assert [(row.zone, row.instance_type) for row in scene.instances()] == [("a", "first")]


class Picky(MemoryCloud):
    """Has some types only, and some tries of others end in the dark."""

    has: tuple[str, ...] = ()
    tried: list[tuple[str, str]]
    dark: bool = False
    """The next create of a type that it has takes effect, and its caller dies."""

    def create(self, offer: Offer, config: NodeConfig, token: str) -> Instance:
        self.tried.append((offer.instance_type, token))
        if offer.instance_type not in self.has:
            raise CapacityError(f"no {offer.instance_type}")
        instance = super().create(offer, config, token)
        if self.dark:
            self.dark = False
            raise CloudError("killed")
        return instance


@pytest.fixture
def picky(cluster_dir: Path) -> Scene:
    provider = Picky()
    provider.tried = []
    types = ("g5", "g6", "g4dn")
    provider.market = tuple(replace(offer("a", 0.3), instance_type=kind) for kind in types) + tuple(
        replace(offer("a", 1.0), instance_type=kind, is_spot=False) for kind in types
    )
    return Scene(provider=provider, engine=store.open_for_writing(store.state_path(cluster_dir)))


def tried(scene: Scene) -> list[tuple[str, str]]:
    assert isinstance(scene.provider, Picky)
    return scene.provider.tried


def have(scene: Scene, *types: str, dark: bool = False) -> None:
    assert isinstance(scene.provider, Picky)
    scene.provider.has, scene.provider.dark = types, dark


def test_types_of_a_zone_are_tried_in_turn_each_under_a_token_of_its_own(picky: Scene) -> None:
    have(picky, "g4dn")
    play(picky.create)

    assert tried(picky) == [("g5", "token-1"), ("g6", "token-1.2"), ("g4dn", "token-1.3")]
    assert [(row.token, row.instance_type, row.instance_id) for row in picky.instances()] == [
        ("token-1.3", "g4dn", "i-1")
    ]


def test_a_zone_without_any_of_the_types_is_short_and_nothing_stays_intended(picky: Scene) -> None:
    play(picky.create)

    assert [kind for kind, _ in tried(picky)] == ["g5", "g6", "g4dn"], "nothing on demand unless it is allowed"
    (failed,) = picky.heard
    assert isinstance(failed, CreateFailed) and (failed.fault, failed.token) == (CreateFault.CAPACITY, "token-1")
    assert picky.instances() == []


def test_a_try_that_ended_in_the_dark_is_repeated_before_any_other(picky: Scene) -> None:
    """Else the type that had none before might have one now, and the node two instances."""
    have(picky, "g6", dark=True)

    async def scenario() -> None:
        await picky.create()
        have(picky, "g5", "g6")
        await again(picky).create()

    play(scenario)

    assert tried(picky)[-1] == ("g6", "token-1.2")
    assert len(picky.provider.made) == 1


def test_what_is_bought_on_demand_is_billed_so(picky: Scene, cluster_dir: Path) -> None:
    async def scenario() -> None:
        have(picky)
        wanted = CreateInstance(node_id=NodeId("n1"), zone="a", token="t", on_demand=True)
        picky.provider.market = (picky.provider.market[0], picky.provider.market[3])
        await picky.cloud.create(wanted)
        assert tried(picky) == [("g5", "t"), ("g5", "t.2")]
        have(picky, "g5")
        picky.provider.market = picky.provider.market[1:]
        await picky.cloud.create(wanted)

    play(scenario)
    picky.provider.made["t"] = replace(picky.provider.made["t"], is_spot=False)
    play(lambda: look_twice(picky))

    (charge,) = reader.read_charges(store.state_path(cluster_dir), now=START + 3600)
    assert charge.spot_microusd == charge.on_demand_microusd


def test_the_intent_is_stored_before_the_cloud_is_asked(scene: Scene) -> None:
    seen: list[tuple[str, float | None]] = []
    create = scene.provider.create

    def looking(*arguments: object) -> object:
        seen.extend((row.token, row.launched_at) for row in scene.instances())
        return create(*arguments)  # type: ignore[arg-type]

    scene.provider.create = looking  # type: ignore[assignment]
    play(scene.create)

    assert seen == [("token-1", None)]


def test_a_lost_answer_is_made_good_by_the_same_token(scene: Scene) -> None:
    scene.provider.lose_answer = True

    async def scenario() -> None:
        await scene.create()
        await again(scene).create()

    play(scenario)

    (failed,) = scene.heard
    assert isinstance(failed, CreateFailed) and failed.fault is CreateFault.CLOUD
    assert len(scene.provider.made) == 1 and scene.provider.num_creates == 2
    assert [(row.token, row.instance_id) for row in scene.instances()] == [("token-1", "i-1")]


def nothing_on_offer(scene: Scene) -> None:
    scene.provider.market = ()


def credentials_have_run_out(scene: Scene) -> None:
    def refuse() -> tuple[Offer, ...]:
        raise CredentialsError("who are you")

    scene.provider.offers = refuse  # type: ignore[method-assign]


@pytest.mark.parametrize("meanwhile", [nothing_on_offer, credentials_have_run_out])
def test_a_lost_answer_is_asked_for_again_whatever_is_on_offer_by_then(
    scene: Scene, meanwhile: Callable[[Scene], None]
) -> None:
    """Another token for the node, and it would have two instances."""
    scene.provider.lose_answer = True
    later = scene

    async def scenario() -> None:
        nonlocal later
        await scene.create()
        meanwhile(scene)
        later = again(scene)
        await later.create()

    play(scenario)

    assert [type(event) for event in later.heard] == [CreateSucceeded]
    assert [(row.token, row.instance_id) for row in scene.instances()] == [("token-1", "i-1")]


def test_what_ended_before_its_lost_answer_was_asked_for_again_is_said_to_have_ended(
    scene: Scene, cluster_dir: Path
) -> None:
    """Else its node would be waited for, and paid for, until its time to join has run out."""
    scene.provider.lose_answer = True
    later = scene

    async def scenario() -> None:
        nonlocal later
        await scene.create()
        scene.now += 360
        scene.provider.preempt("i-1", notice_s=None)
        scene.now += 3600
        later = again(scene)
        await later.create()
        await look_twice(later)

    play(scenario)

    ended = InstanceEnded(node_id=NodeId("n1"), reason=EndReason.PREEMPTED, at=START + 360)
    assert [type(event) for event in later.heard] == [CreateSucceeded, InstanceEnded]
    assert later.heard[-1] == ended
    (charge,) = reader.read_charges(store.state_path(cluster_dir), now=START + 9999)
    assert charge.seconds == 360.0


@pytest.mark.parametrize(
    ("trouble", "fault"),
    [(QuotaError("no more"), CreateFault.QUOTA), (CredentialsError("who are you"), CreateFault.CREDENTIALS)],
)
def test_what_the_cloud_refuses_leaves_no_intent(scene: Scene, trouble: QuotaError, fault: CreateFault) -> None:
    def refuse(*_: object) -> None:
        raise trouble

    scene.provider.create = refuse  # type: ignore[assignment]
    play(scene.create)

    assert scene.heard == [CreateFailed(node_id=NodeId("n1"), token="token-1", fault=fault, detail=trouble.message)]
    assert scene.instances() == []


def test_a_full_zone_and_an_unknown_zone_are_both_no_capacity(scene: Scene) -> None:
    scene.provider.capacity = 0

    async def scenario() -> None:
        await scene.create()
        await scene.create(2, zone="nowhere")

    play(scenario)

    assert [event.fault for event in scene.heard if isinstance(event, CreateFailed)] == [CreateFault.CAPACITY] * 2


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


def test_what_is_given_back_is_terminated_and_then_said_to_have_ended(scene: Scene) -> None:
    async def scenario() -> None:
        await scene.create()
        scene.cloud.terminate(NodeId("n1"))
        await watching(scene, lambda: bool(scene.events(InstanceEnded)), "the end")

    play(scenario)

    assert scene.provider.alive() == []
    assert [(e.node_id, e.reason) for e in scene.heard if isinstance(e, InstanceEnded)] == [("n1", EndReason.USER)]


SELDOM_S = 1000.0


def test_what_was_just_given_back_is_looked_at_again_soon(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryCloud, "poll_s", SELDOM_S)
    monkeypatch.setattr(cloud_module, "SOON_S", 0.005)

    async def scenario() -> None:
        await scene.create()
        scene.cloud.terminate(NodeId("n1"))
        await watching(scene, lambda: bool(scene.events(InstanceEnded)), "the end")

    play(scenario)


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
    first_may_go_on = threading.Event()
    create = later.provider.create

    def slow(*arguments: Any) -> Instance:
        first_may_go_on.wait(20)
        return create(*arguments)

    later.provider.create = slow  # type: ignore[method-assign]

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


def test_a_price_that_changes_is_paid_from_then_on(scene: Scene, cluster_dir: Path) -> None:
    async def scenario() -> None:
        await scene.create(1)
        scene.now += 1800
        scene.provider.market = (offer("a", 0.6),)
        await scene.create(2)

    play(scenario)

    charges = reader.read_charges(store.state_path(cluster_dir), now=START + 3600)
    paid = [(charge.instance_id, charge.seconds, charge.spot_microusd) for charge in charges]
    assert paid == [("i-1", 3600.0, 150_000 + 300_000), ("i-2", 1800.0, 300_000)]


def test_a_price_that_is_heard_after_the_clock_was_set_back_still_follows_the_old_one(scene: Scene) -> None:
    with store.writing(scene.engine) as connection:
        for spot, now in ((0.3, 1000.0), (0.5, 900.0), (0.5, 901.0)):
            journal.record_prices(connection, (offer("a", spot),), now)
        prices = connection.execute(select(schema.prices).order_by(schema.prices.c.from_at)).all()

    assert [row.spot_microusd_per_hour for row in prices] == [300_000, 500_000]


def test_running_instances_are_not_reported_again_while_nothing_changes(scene: Scene) -> None:
    async def scenario() -> None:
        await scene.create()
        scene.provider.made["token-1"] = replace(scene.provider.made["token-1"], state=InstanceState.ENDING)
        await watching(scene, lambda: bool(scene.events(InstanceSeen)), "the change")
        await look_twice(scene)

    play(scenario)

    assert len(scene.events(InstanceSeen)) == 1
