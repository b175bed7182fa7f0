"""``bamboo up`` and ``down`` when EC2 or the machine under them fails: nothing is rented twice, or forgotten.

The machines do not boot here: nothing is to be waited for on them. Most of it is also shown at the provider alone
(tests/providers/test_aws.py); what takes long runs with ``make soak``.
"""

import signal
import threading

import pytest

from tests.aws.conftest import Cloud
from tests.aws.product import ZONES, AwsBamboo

pytestmark = [pytest.mark.vms, pytest.mark.timeout(180)]

NODES = 2
MET_S = 60.0


@pytest.fixture(autouse=True)
def _nothing_boots(cloud: Cloud) -> None:
    cloud.rack.order = ()


def _begin_up(bamboo: AwsBamboo, **changes: object) -> None:
    bamboo.begin("up", bamboo.job(nodes=NODES, stages=NODES, **changes), "--yes")


def _until_connecting(bamboo: AwsBamboo, num_nodes: int = NODES) -> None:
    """So many nodes are rented, and known to be."""
    bamboo.until(lambda: len(_connecting(bamboo)) >= num_nodes, f"{num_nodes} machines to be connected to")


def _connecting(bamboo: AwsBamboo) -> set[str]:
    if not (bamboo.cluster_dir / "state.db").exists():
        return set()
    return {str(event.node_id) for event in bamboo.events("node") if "connecting" in event.text}


@pytest.mark.parametrize(
    ("action", "after"),
    [
        pytest.param("ImportKeyPair", True, marks=pytest.mark.soak),
        pytest.param("CreateSecurityGroup", True, marks=pytest.mark.soak),
        pytest.param("AuthorizeSecurityGroupIngress", False, marks=pytest.mark.soak),
        pytest.param("RunInstances", False, marks=pytest.mark.soak),
        ("RunInstances", True),
        pytest.param("DescribeSpotInstanceRequests", False, marks=pytest.mark.soak),
    ],
)
def test_a_coordinator_killed_in_a_call_rents_nothing_twice(
    cloud: Cloud, bamboo: AwsBamboo, action: str, after: bool
) -> None:
    """The call it was killed in takes effect, before or after its death."""
    held = cloud.aws.fault(action, gate=threading.Event(), after=after)
    _begin_up(bamboo)
    assert held.met.wait(MET_S)
    bamboo.kill_coordinator()
    held.lift()

    _begin_up(bamboo)
    _until_connecting(bamboo)

    assert len(cloud.aws.lives()) == NODES
    bamboo.goes_down()


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.soak)])
def test_an_up_that_is_ended_while_nodes_are_rented_leaves_them_to_the_coordinator(
    cloud: Cloud, bamboo: AwsBamboo, number: signal.Signals
) -> None:
    held = cloud.aws.fault("RunInstances", gate=threading.Event())
    up = bamboo.begin("up", bamboo.job(nodes=NODES, stages=NODES), "--yes")
    assert held.met.wait(MET_S)
    bamboo.until(lambda: "waiting for the nodes" in up.log.with_suffix(".err").read_text(), "up to wait")
    up.child.send_signal(number)
    ended = up.end()
    held.lift()

    if number is signal.SIGINT:
        assert ended.exit_code == 130
        assert "bamboo down" in ended.stderr
    _until_connecting(bamboo)
    assert len(cloud.aws.lives()) == NODES
    bamboo.goes_down()


@pytest.mark.soak
def test_an_up_that_is_killed_before_it_asked_for_anything_has_rented_nothing(cloud: Cloud, bamboo: AwsBamboo) -> None:
    held = cloud.aws.fault("DescribeSpotPriceHistory", gate=threading.Event())
    up = bamboo.begin("up", bamboo.job(nodes=NODES, stages=NODES), "--yes")
    assert held.met.wait(MET_S)
    up.child.kill()
    up.end()
    held.lift()
    assert cloud.aws.lives() == []
    assert cloud.aws.remains() == []


@pytest.mark.soak
def test_answers_that_are_lost_after_their_effect_rent_nothing_twice(cloud: Cloud, bamboo: AwsBamboo) -> None:
    cloud.aws.fault("RunInstances", drop=True, after=True, times=NODES)
    _begin_up(bamboo)
    _until_connecting(bamboo)
    assert len(cloud.aws.lives()) == NODES
    bamboo.goes_down()


def test_two_of_three_zones_are_full_and_the_third_has_all(cloud: Cloud, bamboo: AwsBamboo) -> None:
    for zone in ZONES[:2]:
        cloud.aws.account.capacity[(zone, "*")] = 0
    _begin_up(bamboo)
    _until_connecting(bamboo)
    assert [life.zone for life in cloud.aws.alive()] == [ZONES[2]] * NODES
    bamboo.goes_down()


@pytest.mark.soak
def test_of_more_than_there_are_all_are_taken_and_the_rest_comes_when_there_is_one(
    cloud: Cloud, bamboo: AwsBamboo
) -> None:
    for zone in ZONES:
        cloud.aws.account.capacity[(zone, "*")] = 0
    cloud.aws.account.capacity[(ZONES[1], "*")] = 1
    _begin_up(bamboo)
    _until_connecting(bamboo, 1)
    bamboo.until(lambda: bamboo.events("capacity"), "the shortage to be told")
    assert len(cloud.aws.alive()) == 1
    cloud.aws.account.capacity[(ZONES[0], "*")] = 1
    _until_connecting(bamboo)
    assert sorted(life.zone for life in cloud.aws.alive()) == sorted(ZONES[:2])
    bamboo.goes_down()


@pytest.mark.soak
def test_a_quota_is_told_with_its_name_code_value_and_how_to_ask_for_more(cloud: Cloud, bamboo: AwsBamboo) -> None:
    cloud.aws.account.quotas[("us-east-1", "L-3819A6DF")] = 4.0
    _begin_up(bamboo)
    told = bamboo.until(lambda: "L-3819A6DF" in bamboo.story() and bamboo.story(), "the quota to be told")
    assert "All G and VT Spot Instance Requests" in told
    assert "4 vCPUs" in told
    bamboo.goes_down()


@pytest.mark.soak
def test_new_instances_that_nobody_knows_yet_are_waited_for(cloud: Cloud, bamboo: AwsBamboo) -> None:
    cloud.aws.account.visible_after_s = 8.0
    _begin_up(bamboo)
    _until_connecting(bamboo)
    assert len(cloud.aws.lives()) == NODES
    bamboo.goes_down()


@pytest.mark.soak
def test_throttled_lists_are_asked_again_and_cost_no_node(cloud: Cloud, bamboo: AwsBamboo) -> None:
    _begin_up(bamboo)
    _until_connecting(bamboo)
    throttled = cloud.aws.fault("Describe*", "RequestLimitExceeded", times=None)
    bamboo.until(lambda: "cannot see the cloud" in bamboo.story(), "the throttling to be told")
    throttled.lift()
    bamboo.goes_down()
    assert len(cloud.aws.lives()) == NODES


def test_an_instance_that_dies_in_boot_is_replaced(cloud: Cloud, bamboo: AwsBamboo) -> None:
    cloud.rack.order = ("break",)
    _begin_up(bamboo)
    bamboo.until(lambda: len(cloud.aws.lives()) >= NODES, "the first machines")
    cloud.rack.order = ()
    bamboo.until(lambda: len(cloud.aws.lives()) == 2 * NODES and len(cloud.aws.alive()) == NODES, "others instead")
    bamboo.goes_down()


def test_a_machine_with_another_host_key_is_not_spoken_to_and_replaced(cloud: Cloud, bamboo: AwsBamboo) -> None:
    cloud.rack.order = ("foreign host key", "authorized keys", "sshd", "commands")
    _begin_up(bamboo)
    bamboo.until(lambda: "shows the host key" in bamboo.story(), "the foreign key to be seen")
    cloud.rack.order = ()
    first = cloud.rack.machines[0]
    bamboo.until(lambda: first.boot.instance_id not in [life.instance_id for life in cloud.aws.alive()], "its end")
    assert "Accepted publickey" not in first.log.read_text()
    bamboo.goes_down()


def test_down_with_a_missing_permission_says_what_is_left_and_can_be_repeated(cloud: Cloud, bamboo: AwsBamboo) -> None:
    _begin_up(bamboo)
    _until_connecting(bamboo)
    allowed = cloud.aws.account.allowed
    cloud.aws.account.allowed = ("ec2:Describe*", "ec2:TerminateInstances", "ec2:CancelSpotInstanceRequests")
    down = bamboo.call("down", "--yes", "--now")
    assert down.exit_code == 1, down.stdout
    assert "ec2:DeleteSecurityGroup" in down.stderr
    assert "security group" in down.stderr
    assert cloud.aws.alive() == []
    cloud.aws.account.allowed = allowed
    bamboo.goes_down()


@pytest.mark.soak
def test_a_cluster_whose_name_begins_like_another_s_is_left_alone(cloud: Cloud, bamboo: AwsBamboo) -> None:
    for name in ("drilled", "drilled-2"):
        bamboo.begin("up", bamboo.job(name=name, nodes=1, stages=1), "--yes")
    bamboo.until(lambda: len(cloud.aws.alive()) == 2, "both to be rented")
    _until_connecting(bamboo, 1)
    down = bamboo.call("down", "--yes", "--now", "--cluster", "drilled")
    assert down.exit_code == 0, down.stderr
    assert len(cloud.aws.alive()) == 1
    assert all("drilled-2" in line for line in cloud.aws.remains() if "group" in line or "key pair" in line)
    bamboo.cluster = "drilled-2"
    bamboo.goes_down()
