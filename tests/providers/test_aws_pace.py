"""How fast RunInstances is asked: as EC2 takes it, and no faster after it has refused."""

import threading
import time
from functools import partial
from pathlib import Path

import pytest

from bamboo_cli.errors import ThrottledError
from bamboo_cli.providers import aws as module
from bamboo_cli.providers.aws import AwsProvider
from bamboo_cli.providers.aws_cloud import pace as module_pace
from bamboo_cli.providers.aws_cloud.known import AwsSettings
from bamboo_cli.providers.aws_cloud.pace import Pace
from bamboo_cli.providers.base import Instance, Offer
from tests.aws.account import Account
from tests.aws.double import AwsDouble
from tests.providers.contract import node_config

NUM_NODES = 16
FASTER = 10.0
DEMANDED_S = (NUM_NODES - 5) / 2
"""By the bucket: five at once, then two a second."""


@pytest.fixture
def provider(aws_here: AwsDouble, tmp_path: Path) -> AwsProvider:
    settings = AwsSettings(regions=("us-east-1",), types=("g5.xlarge",), ssh_from=("203.0.113.7/32",))
    return AwsProvider(tmp_path / "cluster", settings)


@pytest.fixture
def offer(provider: AwsProvider) -> Offer:
    return provider.offers()[0]


def rent(provider: AwsProvider, offer: Offer, num_nodes: int) -> list[Instance]:
    made: list[Instance] = []

    def create(number: int) -> None:
        made.append(provider.create(offer, node_config(f"n{number}"), f"t{number}"))

    threads = [threading.Thread(target=create, args=(number,)) for number in range(num_nodes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return made


class Clock:
    """Time that passes where somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_five_go_at_once_and_then_two_a_second() -> None:
    clock = Clock()
    pace = Pace(clock=clock, sleep=clock.sleep)
    turns = []
    for _ in range(9):
        pace.take()
        turns.append(clock.now - 100.0)

    assert turns == [0, 0, 0, 0, 0, 0.5, 1.0, 1.5, 2.0]


def test_who_has_waited_long_has_five_again_and_no_more() -> None:
    clock = Clock()
    pace = Pace(clock=clock, sleep=clock.sleep)
    for _ in range(5):
        pace.take()
    clock.sleep(1000.0)
    for _ in range(5):
        pace.take()
    assert clock.now == 1100.0
    pace.take()
    assert clock.now == 1100.5


def test_after_a_refusal_the_next_turn_is_later_and_later_until_one_is_taken() -> None:
    clock = Clock()
    pace = Pace(clock=clock, sleep=clock.sleep)
    waited = []
    for _ in range(6):
        began = clock.now
        pace.refused()
        pace.take()
        waited.append(clock.now - began)
    assert waited == [1.0, 1.5, 2.5, 4.5, 8.5, 8.5]

    pace.accepted()
    began = clock.now
    pace.refused()
    pace.take()
    assert clock.now - began == 1.0


def test_sixteen_nodes_are_rented_in_the_time_that_ec2_demands_and_none_is_asked_for_in_vain(
    aws: AwsDouble, provider: AwsProvider, offer: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock of EC2's that we hold: how busy this machine is counts for nothing."""
    clock = Clock()
    began = clock.now = float(round(aws.account.now()))  # so that half seconds are added exactly
    monkeypatch.setattr(Account, "now", lambda account: clock.now)
    monkeypatch.setattr(module, "Pace", partial(Pace, clock=clock, sleep=clock.sleep))
    for number in range(NUM_NODES):
        provider.create(offer, node_config(f"n{number}"), f"t{number}")

    assert clock.now - began == DEMANDED_S
    assert len(aws.called("RunInstances")) == NUM_NODES == len(aws.alive())


def test_sixteen_that_come_at_once_do_not_all_knock_at_once(
    aws: AwsDouble, provider: AwsProvider, offer: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here everything goes ten times as fast."""
    aws.account.launches_per_s *= FASTER
    monkeypatch.setattr(module_pace, "PER_S", 2 * FASTER)
    rent(provider, offer, 1)  # what has to be made first, is there
    aws.account.launch_tokens.clear()
    provider._paces.clear()
    began = time.monotonic()

    made = rent(provider, offer, NUM_NODES)
    took_s = time.monotonic() - began

    assert len({instance.instance_id for instance in made}) == NUM_NODES == len(aws.alive())
    assert took_s > DEMANDED_S / FASTER - 0.1
    assert len(aws.called("RunInstances")) < 1.5 * NUM_NODES, "few were sent in vain"


def test_a_bucket_that_others_have_emptied_is_waited_for_and_nothing_is_doubled(
    aws: AwsDouble, provider: AwsProvider, offer: Offer
) -> None:
    fault = aws.fault("RunInstances", "RequestLimitExceeded", times=2)

    made = provider.create(offer, node_config(), "t1")

    assert fault.num_met == 2
    assert [life.instance_id for life in aws.alive()] == [made.instance_id]
    assert {call.parameters["ClientToken"] for call in aws.called("RunInstances")} == {"t1"}


def test_a_bucket_that_stays_empty_is_told_in_the_end(
    aws: AwsDouble, provider: AwsProvider, offer: Offer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "THROTTLED_S", 0.0)
    aws.fault("RunInstances", "RequestLimitExceeded", times=None)

    with pytest.raises(ThrottledError, match="RequestLimitExceeded"):
        provider.create(offer, node_config(), "t1")
    assert not aws.alive()
