"""``bamboo down`` on EC2's double: what it may not end it names, and what is not of its cluster it leaves alone."""

import signal
import threading

import pytest

from tests.aws.account import Credentials
from tests.aws.conftest import Cloud
from tests.aws.product import NODES, AwsBamboo, waits_for_nodes

pytestmark = [pytest.mark.vms, pytest.mark.usefixtures("nothing_boots"), pytest.mark.timeout(180)]


def test_down_with_a_missing_permission_says_what_is_left_and_can_be_repeated(cloud: Cloud, bamboo: AwsBamboo) -> None:
    bamboo.begin_up()
    bamboo.until_connecting()
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
        bamboo.begin_up(1, name=name)
    bamboo.until(lambda: len(cloud.aws.alive()) == 2, "both to be rented")
    bamboo.until_connecting(1)
    down = bamboo.call("down", "--yes", "--now", "--cluster", "drilled")
    assert down.exit_code == 0, down.stderr
    assert len(cloud.aws.alive()) == 1
    assert all("drilled-2" in line for line in cloud.aws.remains() if "group" in line or "key pair" in line)
    bamboo.cluster = "drilled-2"
    bamboo.goes_down()


MET_S = 150.0
CALLS_OF_DOWN = ("TerminateInstances", "DescribeInstances", "DeleteSecurityGroup", "DeleteKeyPair", "DescribeVolumes")


def test_down_while_up_still_rents_gives_back_what_comes_of_it_and_up_says_so(cloud: Cloud, bamboo: AwsBamboo) -> None:
    """EC2 has taken the requests, and their answers are on the way."""
    held = cloud.aws.fault("RunInstances", gate=threading.Event(), after=True, times=NODES)
    up = bamboo.begin_up()
    assert held.met.wait(MET_S)
    bamboo.until(lambda: waits_for_nodes(up), "up to wait")
    down = bamboo.begin("down", "--yes", "--now")
    bamboo.until(lambda: "the cluster is to be closed" in bamboo.story(), "down to be heard")
    held.lift()

    ended, given_back = up.end(), down.end()

    assert given_back.exit_code == 0, f"{given_back.stderr}\n{bamboo.story()}"
    assert ended.exit_code == 1
    assert "was taken down meanwhile" in ended.stderr
    assert cloud.aws.remains() == []
    assert len(cloud.aws.lives()) == NODES


def test_down_twice_at_once_ends_well_twice(cloud: Cloud, bamboo: AwsBamboo) -> None:
    bamboo.begin_up()
    bamboo.until_connecting()
    both = [bamboo.begin("down", "--yes", "--now") for _ in range(2)]
    for down in both:
        ended = down.end()
        assert ended.exit_code == 0, f"{ended.stderr}\n{bamboo.story()}"
    assert cloud.aws.remains() == []


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("after", [False, True])
def test_a_down_that_is_ended_in_any_call_is_made_good_by_the_next(
    cloud: Cloud, bamboo: AwsBamboo, number: signal.Signals, after: bool
) -> None:
    """The command and its coordinator; Ctrl-C says what is left."""
    for action in CALLS_OF_DOWN:
        cloud.rack.order = ()
        bamboo.begin_up()
        bamboo.until(lambda: len(cloud.aws.alive()) == NODES, "another cluster than the one before")
        bamboo.until_connecting()
        held = cloud.aws.fault(action, gate=threading.Event(), after=after, times=None)
        down = bamboo.begin("down", "--yes", "--now")
        assert held.met.wait(MET_S), f"{action}: {down.log.with_suffix('.err').read_text()}\n{bamboo.story()}"
        down.child.send_signal(number)
        if number is signal.SIGKILL:
            ended = down.end()
            if bamboo.has_coordinator():
                bamboo.kill_coordinator()
        held.lift()
        if number is signal.SIGINT:
            ended = down.end()
            assert ended.exit_code in (0, 130), ended.stderr
            if ended.exit_code == 130:
                assert "interrupted while everything was being given back" in ended.stderr
        bamboo.goes_down()
        cloud.aws.reset()


@pytest.mark.soak
def test_credentials_that_run_out_while_down_waits_are_told_and_the_next_down_ends_all(
    cloud: Cloud, bamboo: AwsBamboo
) -> None:
    bamboo.begin_up()
    bamboo.until_connecting()
    cloud.aws.account.shutting_down_s = 5.0
    held = cloud.aws.fault("TerminateInstances", gate=threading.Event(), after=True)
    down = bamboo.begin("down", "--yes", "--now")
    assert held.met.wait(MET_S)
    cloud.aws.account.credentials = Credentials.EXPIRED
    held.lift()
    ended = down.end()
    assert ended.exit_code == 1
    assert "aws sso login" in ended.stderr
    cloud.aws.account.credentials = Credentials.GOOD
    bamboo.goes_down(NODES)


@pytest.mark.soak
def test_a_state_file_that_was_deleted_is_no_reason_to_pay_on(cloud: Cloud, bamboo: AwsBamboo) -> None:
    """Its coordinator goes on with a file that nobody else can open."""
    bamboo.begin_up()
    bamboo.until_connecting()
    for file in bamboo.cluster_dir.glob("state.db*"):
        file.unlink()
    down = bamboo.call("down", "--yes", "--now", "--all-regions")
    assert down.exit_code == 0, down.stderr
    assert cloud.aws.remains() == []
    assert not bamboo.has_coordinator()
