"""How the coordinator rents: what is asked for, under which token, and what a lost answer comes to."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from bamboo_trainer.plan import NodeId
from sqlalchemy import select

from bamboo_cli.coordinator import journal, reader, schema, store
from bamboo_cli.coordinator.events import (
    CreateFailed,
    CreateFault,
    CreateInstance,
    CreateSucceeded,
    InstanceEnded,
)
from bamboo_cli.errors import CapacityError, CloudError, CredentialsError, QuotaError
from bamboo_cli.providers.base import EndReason, Instance, NodeConfig, Offer
from tests.coordinator.cloud_scene import START, Scene, again, look_often, look_twice, play, scene
from tests.coordinator.memory_cloud import MemoryCloud, offer

__all__ = ["look_often", "scene"]


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
