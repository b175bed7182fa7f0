"""``bamboo up`` is ended, or its coordinator is, in a call to AWS: nothing is rented twice or forgotten, and the next
``up`` goes on.

The machines do not boot here: nothing is to be waited for on them. One of each kind runs with ``make vms``, the others
with ``make soak``.
"""

import itertools
import signal
import threading

import pytest

from tests import killed_at
from tests.aws.conftest import Cloud
from tests.aws.product import NODES, AwsBamboo, waits_for_nodes

pytestmark = [pytest.mark.vms, pytest.mark.usefixtures("nothing_boots"), pytest.mark.timeout(600)]

MET_S = 150.0
DEEDS = 8
"""At least: folder, state file, identity, log, coordinator."""
OF_THE_COMMAND = ("DescribeSubnets", "DescribeSpotPriceHistory", "GetProducts", "GetSpotPlacementScores")
OF_THE_COORDINATOR = (
    "DescribeSubnets",
    "DescribeSpotPriceHistory",
    "GetProducts",
    "DescribeKeyPairs",
    "ImportKeyPair",
    "DescribeSecurityGroups",
    "CreateSecurityGroup",
    "AuthorizeSecurityGroupIngress",
    "DescribeInstanceTypes",
    "GetParameter",
    "DescribeImages",
    "RunInstances",
    "DescribeInstances",
    "DescribeSpotInstanceRequests",
)
"""In the order in which they come first."""
CHANGES = tuple(action for action in OF_THE_COORDINATOR if not action.startswith(("Describe", "Get")))


@pytest.mark.parametrize(
    ("actions", "after"),
    [
        pytest.param(("RunInstances",), True, id="one"),
        pytest.param(OF_THE_COORDINATOR, False, id="each, before", marks=pytest.mark.soak),
        pytest.param(CHANGES, True, id="each change, after", marks=pytest.mark.soak),
    ],
)
def test_a_coordinator_killed_in_a_call_rents_nothing_twice(
    cloud: Cloud, bamboo: AwsBamboo, actions: tuple[str, ...], after: bool
) -> None:
    """In each of them, one coordinator after the other. The call takes effect, before or after its caller's death."""
    for action in actions:
        held = cloud.aws.fault(action, gate=threading.Event(), after=after, when=lambda call: bamboo.has_coordinator())
        bamboo.begin_up()
        assert held.met.wait(MET_S), f"{action}\n{bamboo.story()}"
        bamboo.kill_coordinator()
        held.lift()

    bamboo.begin_up()
    bamboo.until_connecting()

    _nothing_is_double(cloud)
    bamboo.goes_down(NODES)


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.soak)])
def test_an_up_that_is_ended_while_nodes_are_rented_leaves_them_to_the_coordinator(
    cloud: Cloud, bamboo: AwsBamboo, number: signal.Signals
) -> None:
    held = cloud.aws.fault("RunInstances", gate=threading.Event())
    up = bamboo.begin_up()
    assert held.met.wait(MET_S)
    bamboo.until(lambda: waits_for_nodes(up), "up to wait")
    up.child.send_signal(number)
    ended = up.end()
    held.lift()

    if number is signal.SIGINT:
        assert ended.exit_code == 130
        assert "bamboo down" in ended.stderr
    bamboo.until_connecting()
    _nothing_is_double(cloud)
    bamboo.goes_down(NODES)


@pytest.mark.soak
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_up_that_is_ended_before_it_asked_for_anything_has_rented_nothing(
    cloud: Cloud, bamboo: AwsBamboo, number: signal.Signals
) -> None:
    for action in OF_THE_COMMAND:
        held = cloud.aws.fault(action, gate=threading.Event())
        up = bamboo.begin_up()
        assert held.met.wait(MET_S), action
        up.child.send_signal(number)
        ended = up.end()
        held.lift()
        if number is signal.SIGINT:
            assert ended.exit_code == 130
            assert "nothing was rented" in ended.stderr
        assert cloud.aws.remains() == []

    bamboo.begin_up()
    bamboo.until_connecting()
    _nothing_is_double(cloud)
    bamboo.goes_down(NODES)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_an_up_killed_at_any_of_its_deeds_is_made_good_by_the_next(cloud: Cloud, bamboo: AwsBamboo) -> None:
    """A file made, renamed or removed, a process started: it dies there, at each in turn."""
    job = bamboo.job(nodes=NODES, stages=NODES)
    for number in itertools.count():
        up = bamboo.begin("up", job, "--yes", program=(killed_at.__file__, str(number), bamboo.folder / "deeds"))
        bamboo.until(lambda: not up.is_on() or waits_for_nodes(up), "its death")  # noqa: B023 (called at once)
        if waits_for_nodes(up):
            break
        assert up.end().exit_code == -signal.SIGKILL
        bamboo.begin_up()
        bamboo.until(lambda: len(cloud.aws.alive()) == NODES, "another cluster than the one before")
        bamboo.until_connecting()
        _nothing_is_double(cloud)
        bamboo.goes_down(NODES)
        cloud.aws.reset()
    assert number >= DEEDS, (bamboo.folder / "deeds").read_text()
    bamboo.goes_down()


@pytest.mark.soak
def test_answers_that_are_lost_after_their_effect_rent_nothing_twice(cloud: Cloud, bamboo: AwsBamboo) -> None:
    cloud.aws.fault("RunInstances", drop=True, after=True, times=NODES)
    bamboo.begin_up()
    bamboo.until_connecting()
    _nothing_is_double(cloud)
    bamboo.goes_down(NODES)


def _nothing_is_double(cloud: Cloud) -> None:
    remains = cloud.aws.remains()
    assert len([line for line in remains if "security group" in line]) == 1, remains
    assert len([line for line in remains if "key pair" in line]) == 1, remains
