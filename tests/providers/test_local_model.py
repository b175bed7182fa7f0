"""What is due when, without a process or a clock."""

from dataclasses import replace
from itertools import pairwise
from statistics import mean
from typing import Any

import pytest

from bamboo_cli.providers.base import EndReason, InstanceState
from bamboo_cli.providers.local_cloud.addresses import first_free, loopback_address
from bamboo_cli.providers.local_cloud.model import Due, Rented, Request, draw_lifetime_s, due
from tests.providers.contract import node_config


def rented(**changes: Any) -> Rented:
    """Launched at 10 s, boots at 12 s; changes of the request, such as ``preemption_seed``."""
    request = Request(
        token="t1",
        config=node_config(),
        instance_type="local.small",
        zone="here",
        capacity=None,
        boot_delay_s=2.0,
        preemptions_per_hour=0.0,
        preemption_seed=0,
        notice_s=30.0,
        notice_poll_s=1.0,
    )
    return Rented(
        instance_id="i-1",
        request=replace(request, **changes),
        index=0,
        address="127.0.0.2",
        metadata_port=80,
        launched_at=10.0,
    )


def running(**changes: Any) -> Rented:
    return rented(**changes).booted(pid=7, pid_created_at=12.0, now=12.0)


def test_it_boots_when_the_delay_is_over() -> None:
    assert due(rented(), alive=False, now=11.9) is Due.NOTHING
    assert due(rented(), alive=False, now=12.0) is Due.BOOT
    assert due(running(), alive=True, now=12.1) is Due.NOTHING


def test_a_dead_agent_ends_it_as_failed() -> None:
    assert due(running(), alive=False, now=13.0) is Due.END
    assert running().ended(13.0).end_reason is EndReason.FAILED


def test_a_notice_ends_it_at_its_deadline_as_preempted() -> None:
    instance = running().noticed(notice_s=30.0, now=100.0)
    assert instance.state is InstanceState.ENDING
    assert due(instance, alive=True, now=129.9) is Due.NOTHING
    assert due(instance, alive=True, now=130.0) is Due.END
    assert instance.ended(130.0).end_reason is EndReason.PREEMPTED


def test_one_that_dies_under_notice_was_preempted() -> None:
    instance = running().noticed(notice_s=30.0, now=100.0)
    assert due(instance, alive=False, now=101.0) is Due.END
    assert instance.ended(101.0).end_reason is EndReason.PREEMPTED


def test_the_first_reason_stands_and_the_earlier_deadline_holds() -> None:
    instance = running().noticed(notice_s=30.0, now=100.0)
    assert instance.noticed(notice_s=60.0, now=101.0).kill_at == 130.0
    terminated = instance.unwanted(105.0)
    assert (terminated.kill_at, terminated.ended(105.0).end_reason) == (105.0, EndReason.PREEMPTED)


def test_under_notice_it_neither_boots_nor_is_taken_by_chance() -> None:
    pending = rented().noticed(notice_s=30.0, now=11.0)
    assert due(pending, alive=False, now=20.0) is Due.NOTHING
    noticed = replace(running(), preempt_at=13.0).noticed(notice_s=30.0, now=12.5)
    assert due(noticed, alive=True, now=14.0) is Due.NOTHING


def test_nothing_is_due_after_the_end() -> None:
    assert due(running().ended(13.0), alive=False, now=99.0) is Due.NOTHING


def test_chance_takes_it_when_its_drawn_time_has_come() -> None:
    instance = running(preemptions_per_hour=60.0, preemption_seed=3)
    lifetime = draw_lifetime_s(instance.request, 0)
    assert lifetime is not None
    assert due(instance, alive=True, now=12.0 + lifetime - 0.01) is Due.NOTHING
    assert due(instance, alive=True, now=12.0 + lifetime) is Due.PREEMPT


def test_lifetimes_follow_from_seed_and_index_and_have_the_rate_as_their_mean() -> None:
    request = rented(preemptions_per_hour=60.0, preemption_seed=3).request
    lifetimes = [draw_lifetime_s(request, index) or 0.0 for index in range(4000)]
    assert lifetimes[:2] == [draw_lifetime_s(request, index) for index in (0, 1)]
    assert all(a != b for a, b in pairwise(lifetimes))
    assert mean(lifetimes) == pytest.approx(60.0, rel=0.05)
    assert draw_lifetime_s(replace(request, preemption_seed=4), 0) != lifetimes[0]
    assert draw_lifetime_s(replace(request, preemptions_per_hour=0.0), 0) is None


def test_loopback_addresses_are_all_different_and_usable() -> None:
    addresses = [loopback_address(number) for number in range(1000)]
    assert len(set(addresses)) == 1000
    assert addresses[:2] == ["127.0.0.2", "127.0.0.3"]
    assert {address.split(".")[3] for address in addresses} == {str(host) for host in range(1, 255)}


def test_a_new_instance_gets_the_first_address_that_nobody_has() -> None:
    assert first_free({"127.0.0.2", "127.0.0.4"}) == "127.0.0.3"
