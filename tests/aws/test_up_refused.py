"""``bamboo up`` when EC2 has no capacity, no quota, no time or no memory: nodes come from elsewhere or later, none is
rented twice or forgotten.

The machines do not boot here, except where it is said. Most of it is also shown at the provider alone
(tests/providers/test_aws.py); what takes long runs with ``make soak``.
"""

import threading
import time

import pytest

from tests.aws.account import Credentials
from tests.aws.conftest import Cloud
from tests.aws.product import NODES, ZONES, AwsBamboo
from tests.aws.vm.virtual import ORDER

pytestmark = [pytest.mark.vms, pytest.mark.usefixtures("nothing_boots"), pytest.mark.timeout(180)]

HELD_S = 60.0
REFUSED = 10
"""Lists in a row: two looks at the cloud, with all that the SDK tries by itself."""


def test_two_of_three_zones_are_full_and_the_third_has_all(cloud: Cloud, bamboo: AwsBamboo) -> None:
    for zone in ZONES[:2]:
        cloud.aws.account.capacity[(zone, "*")] = 0
    bamboo.begin_up()
    bamboo.until_connecting()
    assert [life.zone for life in cloud.aws.alive()] == [ZONES[2]] * NODES
    bamboo.goes_down()


@pytest.mark.soak
def test_of_more_than_there_are_all_are_taken_and_the_rest_comes_when_there_is_one(
    cloud: Cloud, bamboo: AwsBamboo
) -> None:
    for zone in ZONES:
        cloud.aws.account.capacity[(zone, "*")] = 0
    cloud.aws.account.capacity[(ZONES[1], "*")] = 1
    bamboo.begin_up()
    bamboo.until_connecting(1)
    bamboo.until(lambda: bamboo.events("capacity"), "the shortage to be told")
    assert len(cloud.aws.alive()) == 1
    cloud.aws.account.capacity[(ZONES[0], "*")] = 1
    bamboo.until_connecting()
    assert sorted(life.zone for life in cloud.aws.alive()) == sorted(ZONES[:2])
    bamboo.goes_down()


@pytest.mark.soak
def test_a_quota_is_told_with_its_name_code_value_and_how_to_ask_for_more(cloud: Cloud, bamboo: AwsBamboo) -> None:
    cloud.aws.account.quotas[("us-east-1", "L-3819A6DF")] = 4.0
    bamboo.begin_up()
    told = bamboo.until(lambda: "L-3819A6DF" in bamboo.story() and bamboo.story(), "the quota to be told")
    assert "All G and VT Spot Instance Requests" in told
    assert "4 vCPUs" in told
    bamboo.goes_down()


@pytest.mark.soak
def test_new_instances_that_nobody_knows_yet_are_waited_for(cloud: Cloud, bamboo: AwsBamboo) -> None:
    cloud.aws.account.visible_after_s = 8.0
    bamboo.begin_up()
    bamboo.until_connecting()
    bamboo.goes_down(NODES)


def test_throttled_lists_are_asked_again_and_cost_no_node(cloud: Cloud, bamboo: AwsBamboo) -> None:
    """From the first instance on, and for as long as it takes to tell it."""
    throttled = cloud.aws.fault(
        "Describe*", "RequestLimitExceeded", times=None, when=lambda call: bool(cloud.aws.called("RunInstances"))
    )
    bamboo.begin_up()
    bamboo.until(lambda: throttled.num_met >= REFUSED and bamboo.events("cloud"), "the throttling to be told")
    throttled.lift()
    bamboo.until(lambda: "does as it is asked again" in bamboo.story(), "its end")
    bamboo.until_connecting()
    bamboo.goes_down(NODES)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_lists_that_are_throttled_for_a_minute_cost_no_node_that_works_and_double_none_that_is_lost(
    cloud: Cloud, bamboo: AwsBamboo
) -> None:
    cloud.rack.order = ORDER
    bamboo.comes_up()
    begun = time.monotonic()
    throttled = cloud.aws.fault("Describe*", "RequestLimitExceeded", times=None)
    cloud.aws.interrupt(bamboo.instance_of("n1"))
    bamboo.until(lambda: time.monotonic() - begun > HELD_S, "a minute to pass")
    assert bamboo.states("n2") == ["standby"], bamboo.story()
    throttled.lift()
    bamboo.until(lambda: bamboo.states("n1", "n2", "n3") == ["ended", "standby", "standby"], "the one to be replaced")
    assert len(cloud.aws.alive()) == NODES
    bamboo.goes_down(NODES + 1)


SIXTEEN = 16
LATE_S = 6.0
"""The cluster's group and key come before, and the machines are made on the same two processors."""


@pytest.mark.soak
def test_sixteen_nodes_take_the_time_that_ec2_gives_them_and_none_is_doubled(cloud: Cloud, bamboo: AwsBamboo) -> None:
    """RunInstances: five at once, then two a second."""
    bamboo.begin_up(SIXTEEN)
    bamboo.until_connecting(SIXTEEN)

    launched = sorted(life.visible_at for life in cloud.aws.lives())
    assert len(launched) == SIXTEEN == len(cloud.aws.alive())
    demanded_s = (SIXTEEN - cloud.aws.account.launch_burst) / cloud.aws.account.launches_per_s
    assert demanded_s - 0.5 < launched[-1] - launched[0] < demanded_s + LATE_S
    assert len(cloud.aws.called("RunInstances")) < 2 * SIXTEEN, "few were sent in vain"
    assert not bamboo.events("capacity"), bamboo.story()
    bamboo.goes_down(SIXTEEN)


@pytest.mark.soak
def test_credentials_that_run_out_while_up_rents_are_told_and_renting_goes_on_when_there_are_others(
    cloud: Cloud, bamboo: AwsBamboo
) -> None:
    held = cloud.aws.fault("RunInstances", gate=threading.Event())
    bamboo.begin_up()
    assert held.met.wait(HELD_S)
    cloud.aws.account.credentials = Credentials.EXPIRED
    held.lift()
    bamboo.until(lambda: "RequestExpired" in bamboo.story(), "it to be told")
    cloud.aws.account.credentials = Credentials.GOOD
    bamboo.until_connecting()
    assert len(cloud.aws.alive()) == NODES
    bamboo.goes_down(NODES)


@pytest.mark.soak
def test_an_instance_that_is_terminated_by_hand_is_replaced(cloud: Cloud, bamboo: AwsBamboo) -> None:
    bamboo.begin_up()
    bamboo.until_connecting()
    cloud.aws.client().terminate_instances(InstanceIds=[bamboo.instance_of("n1")])
    bamboo.until(lambda: "n3 is rented" in bamboo.story(), "another in its place")
    assert len(cloud.aws.alive()) == NODES
    bamboo.goes_down(NODES + 1)
