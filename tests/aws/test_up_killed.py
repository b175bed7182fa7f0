"""``bamboo up`` is ended, or it and its coordinator are, in each step of preparing: the next ``up`` goes on from there.

One of them runs with ``make vms``, the others with ``make soak``.
"""

import itertools
import signal

import pytest

from tests.aws.conftest import Cloud
from tests.aws.product import AwsBamboo, waits_for_nodes
from tests.aws.vm.virtual import ORDER

pytestmark = [pytest.mark.vms, pytest.mark.timeout(900)]

STEPS = ("look", "boot", "files", "environment", "torch", "bamboo", "config", "agent", "link")
AGENTS = "grep -al 'm.bamboo_[a]gent' /proc/[0-9]*/cmdline | wc -l"


@pytest.fixture(autouse=True)
def _sshd_can_wait(cloud: Cloud, bamboo: AwsBamboo) -> None:
    cloud.rack.order = ("wait", *ORDER)
    bamboo.hide_torch()


@pytest.mark.parametrize(
    ("steps", "after"),
    [
        pytest.param(("bamboo",), False, id="one"),
        pytest.param(("wait", *STEPS), False, id="each, before", marks=pytest.mark.soak),
        pytest.param(STEPS, True, id="each, after", marks=pytest.mark.soak),
    ],
)
def test_up_and_coordinator_killed_in_a_step_are_made_good_by_the_next_up(
    cloud: Cloud, bamboo: AwsBamboo, steps: tuple[str, ...], after: bool
) -> None:
    """In each of them, one after the other. What the first left running on the machine goes on beside the second.
    ``after``: the step's work is done, and its end not told."""
    held = cloud.rack.hold(steps[0], after=after)
    for step, coming in itertools.zip_longest(steps, steps[1:]):
        up = bamboo.begin_up(1)
        bamboo.until(lambda: held.num_met(), f"the step {step}")  # noqa: B023 (called at once)
        bamboo.kill_coordinator()
        up.child.kill()
        up.end()
        before = held
        if coming is not None:
            held = cloud.rack.hold(coming, after=after)
        before.lift()

    bamboo.comes_up(1)

    _one_node_is_there(cloud, bamboo)
    bamboo.goes_down(1)


@pytest.mark.soak
def test_an_up_that_is_interrupted_in_each_step_leaves_it_to_the_coordinator(cloud: Cloud, bamboo: AwsBamboo) -> None:
    """And the last one comes to its end."""
    held = cloud.rack.hold("wait")
    for step in (*STEPS, None):
        up = bamboo.begin_up(1)
        bamboo.until(lambda: held.num_met() == 1 and waits_for_nodes(up), f"{held.file.name}")  # noqa: B023
        up.child.send_signal(signal.SIGINT)
        ended = up.end()
        assert ended.exit_code == 130
        assert "go on booting, and cost money" in ended.stderr
        before, held = held, cloud.rack.hold(step) if step else held
        before.lift()
    bamboo.comes_up(1)
    _one_node_is_there(cloud, bamboo)
    assert [event.text for event in bamboo.events("node")].count("n1: installing bamboo") == 1
    bamboo.goes_down(1)


def _one_node_is_there(cloud: Cloud, bamboo: AwsBamboo) -> None:
    assert bamboo.states("n1") == ["standby"], bamboo.story()
    (machine,) = cloud.rack.machines
    assert machine.run(AGENTS).strip() == "1"
