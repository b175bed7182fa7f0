"""What any provider must do. A subclass gives the fixtures and inherits the tests."""

import os
import time
from collections.abc import Callable

import pytest

from bamboo_cli.errors import CapacityError, InstanceGoneError
from bamboo_cli.providers.base import EndReason, Instance, InstanceState, NodeConfig, Offer, Provider
from tests.waiting import wait_until

CLUSTER, OTHER_CLUSTER = (f"c-{os.getpid()}-{number}" for number in (1, 2))
"""Others may test at the same time, and processes are found by the cluster that they carry."""


def node_config(node_id: str = "n1", cluster_id: str = CLUSTER, port: int = 1) -> NodeConfig:
    """Nobody listens on port 1: the agent tries for ever."""
    return NodeConfig(
        cluster_id=cluster_id, node_id=node_id, coordinator_address="127.0.0.1", coordinator_port=port, secret="s3cret"
    )


def found(provider: Provider, instance: Instance) -> Instance:
    """The instance as the cloud lists it now."""
    (same,) = [i for i in provider.instances(instance.cluster_id) if i.instance_id == instance.instance_id]
    return same


def wait_for(provider: Provider, instance: Instance, state: InstanceState) -> Instance:
    wait_until(lambda: found(provider, instance).state is state, f"{instance.instance_id} to be {state}")
    return found(provider, instance)


class ProviderContract:
    """Fixtures of a subclass: ``provider``, ``offer`` (one that can be had twice), ``full_offer`` (one that cannot),
    ``preempt`` (how the cloud takes an instance; by default the provider is asked to)."""

    grain_s = 0.0
    """How exactly the cloud tells moments."""

    @pytest.fixture
    def preempt(self, provider: Provider) -> Callable[[str, float | None], None]:
        return lambda instance_id, notice_s: provider.preempt(instance_id, notice_s=notice_s)

    def test_offers_have_prices_and_say_where_from(self, provider: Provider) -> None:
        assert provider.offers()
        for offer in provider.offers():
            assert 0.0 <= offer.spot_usd_per_hour <= offer.on_demand_usd_per_hour
            assert offer.price_source

    def test_what_is_created_is_listed_and_runs(self, provider: Provider, offer: Offer) -> None:
        before = time.time()
        created = provider.create(offer, node_config("n7"), "token-1")
        assert (created.node_id, created.cluster_id, created.token) == ("n7", CLUSTER, "token-1")
        assert (created.zone, created.instance_type) == (offer.zone, offer.instance_type)
        running = wait_for(provider, created, InstanceState.RUNNING)
        assert before - 1.0 <= running.launched_at <= time.time()
        assert running.is_spot and running.address
        assert (running.ended_at, running.end_reason) == (None, EndReason.NONE)

    def test_the_same_token_gives_the_same_instance(self, provider: Provider, offer: Offer) -> None:
        first = provider.create(offer, node_config("n1"), "token-1")
        second = provider.create(offer, node_config("n2"), "token-2")
        again = provider.create(offer, node_config("n1"), "token-1")
        assert again.instance_id == first.instance_id != second.instance_id
        assert len(provider.instances(CLUSTER)) == 2

    def test_a_token_of_an_ended_instance_rents_no_other(self, provider: Provider, offer: Offer) -> None:
        created = provider.create(offer, node_config(), "token-1")
        provider.terminate((created.instance_id,))
        assert provider.create(offer, node_config(), "token-1").instance_id == created.instance_id
        wait_for(provider, created, InstanceState.TERMINATED)

    def test_a_zone_without_room_is_a_capacity_error_that_says_so(self, provider: Provider, full_offer: Offer) -> None:
        with pytest.raises(CapacityError) as raised:
            provider.create(full_offer, node_config(), "token-1")
        assert full_offer.zone in raised.value.message
        assert raised.value.next_step
        assert provider.instances(CLUSTER) == ()

    def test_a_cluster_sees_its_own_instances_only(self, provider: Provider, offer: Offer) -> None:
        provider.create(offer, node_config(cluster_id=CLUSTER), "token-1")
        provider.create(offer, node_config(cluster_id=OTHER_CLUSTER), "token-2")
        assert [i.token for i in provider.instances(OTHER_CLUSTER)] == ["token-2"]
        assert provider.instances("c-3") == ()

    def test_a_terminated_instance_ends_for_its_user_and_leaves_nothing(self, provider: Provider, offer: Offer) -> None:
        created = provider.create(offer, node_config(), "token-1")
        wait_for(provider, created, InstanceState.RUNNING)
        assert any(created.instance_id in line for line in provider.left_behind(CLUSTER))
        provider.terminate((created.instance_id,))
        ended = wait_for(provider, created, InstanceState.TERMINATED)
        assert ended.end_reason is EndReason.USER
        assert ended.ended_at is not None and ended.launched_at <= ended.ended_at <= time.time()
        provider.clean(CLUSTER)
        provider.clean(CLUSTER)
        assert provider.left_behind(CLUSTER) == ()

    def test_terminating_what_is_gone_or_unknown_is_no_error(self, provider: Provider, offer: Offer) -> None:
        created = provider.create(offer, node_config(), "token-1")
        provider.terminate((created.instance_id,))
        ended = wait_for(provider, created, InstanceState.TERMINATED)
        provider.terminate((created.instance_id, "i-unheard-of"))
        provider.terminate(())
        assert found(provider, created) == ended

    def test_a_provider_with_nothing_rented_can_be_retired_and_asked_again(
        self, provider: Provider, offer: Offer
    ) -> None:
        created = provider.create(offer, node_config(), "token-1")
        provider.terminate((created.instance_id,))
        wait_for(provider, created, InstanceState.TERMINATED)
        assert provider.retire()
        assert provider.retire()
        assert found(provider, created).end_reason is EndReason.USER

    def test_a_preemption_at_once_ends_it_as_preempted(
        self, provider: Provider, offer: Offer, preempt: Callable[[str, float | None], None]
    ) -> None:
        created = provider.create(offer, node_config(), "token-1")
        wait_for(provider, created, InstanceState.RUNNING)
        preempt(created.instance_id, None)
        assert wait_for(provider, created, InstanceState.TERMINATED).end_reason is EndReason.PREEMPTED
        provider.clean(CLUSTER)
        assert provider.left_behind(CLUSTER) == ()

    def test_a_preemption_with_a_notice_ends_it_after_the_notice(
        self, provider: Provider, offer: Offer, preempt: Callable[[str, float | None], None]
    ) -> None:
        created = provider.create(offer, node_config(), "token-1")
        wait_for(provider, created, InstanceState.RUNNING)
        asked_at = time.time()
        preempt(created.instance_id, 2.0)
        assert found(provider, created).state is InstanceState.ENDING
        ended = wait_for(provider, created, InstanceState.TERMINATED)
        assert ended.end_reason is EndReason.PREEMPTED
        assert ended.ended_at is not None and ended.ended_at >= asked_at + 2.0 - self.grain_s

    def test_what_is_gone_or_unknown_cannot_be_preempted(self, provider: Provider, offer: Offer) -> None:
        created = provider.create(offer, node_config(), "token-1")
        provider.terminate((created.instance_id,))
        wait_for(provider, created, InstanceState.TERMINATED)
        for instance_id in (created.instance_id, "i-unheard-of"):
            with pytest.raises(InstanceGoneError):
                provider.preempt(instance_id, notice_s=None)
