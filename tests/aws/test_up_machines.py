"""``bamboo up`` when a machine under it fails: it is given back, and another becomes the node in its place."""

import pytest

from tests.aws.conftest import Cloud
from tests.aws.product import NODES, AwsBamboo
from tests.aws.vm.virtual import ORDER

pytestmark = [pytest.mark.vms, pytest.mark.timeout(240)]

SOON_MIN = 0.05
LATE_S = 5.0
"""Less than it would take the SSH client by itself."""
SMALL_DISK_BYTES = 400 << 20
"""Enough for what a node needs, and soon full."""


@pytest.fixture(autouse=True)
def _no_recipe_is_tried(bamboo: AwsBamboo) -> None:
    bamboo.hide_torch()


def test_an_instance_that_dies_in_boot_is_replaced(cloud: Cloud, bamboo: AwsBamboo) -> None:
    cloud.rack.order = ("break",)
    bamboo.begin_up()
    bamboo.until(lambda: len(cloud.aws.lives()) >= NODES, "the first machines")
    cloud.rack.order = ()
    bamboo.until(lambda: len(cloud.aws.lives()) == 2 * NODES and len(cloud.aws.alive()) == NODES, "others instead")
    bamboo.goes_down()


def test_an_instance_that_dies_in_install_is_replaced_and_all_come_up(cloud: Cloud, bamboo: AwsBamboo) -> None:
    held = cloud.rack.hold("bamboo")
    up = bamboo.begin_up()
    bamboo.until(lambda: held.num_met() == NODES, "all to be installing")
    cloud.aws.interrupt(bamboo.instance_of("n1"))
    held.lift()
    ended = up.end()
    assert ended.exit_code == 0, f"{ended.stderr}\n{bamboo.story()}"
    assert bamboo.states("n1", "n2", "n3") == ["ended", "standby", "standby"], bamboo.story()
    bamboo.goes_down(NODES + 1)


def test_a_machine_with_another_host_key_is_not_spoken_to_and_replaced(cloud: Cloud, bamboo: AwsBamboo) -> None:
    cloud.rack.order = ("foreign host key", "authorized keys", "sshd", "commands")
    bamboo.begin_up()
    bamboo.until(lambda: "shows the host key" in bamboo.story(), "the foreign key to be seen")
    cloud.rack.order = ()
    first = cloud.rack.machines[0]
    bamboo.until(lambda: first.boot.instance_id not in [life.instance_id for life in cloud.aws.alive()], "its end")
    assert "Accepted publickey" not in first.log.read_text()
    bamboo.goes_down()


def test_a_machine_whose_ssh_never_says_a_word_is_given_up_in_time_and_replaced(
    cloud: Cloud, bamboo: AwsBamboo
) -> None:
    cloud.rack.order = ("mute",)
    bamboo.begin_up(1, on={"connect_within_min": SOON_MIN})
    bamboo.until(lambda: "no SSH banner came" in bamboo.story(), "it to be given up")
    cloud.rack.order = ORDER
    begun, given_up = (bamboo.told_at(words) for words in ("n1: connecting", "n1 is given back"))
    assert given_up - begun < 60 * SOON_MIN + LATE_S
    bamboo.until(lambda: len(cloud.aws.lives()) == 2 and len(cloud.aws.alive()) == 1, "another instead")
    bamboo.until(lambda: "n2: copying files" in bamboo.story(), "another to be prepared")
    bamboo.goes_down()


def test_nobody_waits_for_the_dpkg_lock_that_the_image_s_own_updates_hold(cloud: Cloud, bamboo: AwsBamboo) -> None:
    """We have no need of apt, as little as of the lock."""
    cloud.rack.order = ("dpkg lock", *ORDER)
    bamboo.begin_up(1)
    bamboo.until(lambda: "n1 joined" in bamboo.story(), "it to be a node")
    (machine,) = cloud.rack.machines
    assert machine.run("cat /run/dpkg-lock-opened") == ""
    machine.run("apt-get install --yes nothing || true")
    assert machine.run("cat /run/dpkg-lock-opened") != "", "it would have been seen"
    bamboo.goes_down()


def test_a_disk_that_fills_is_told_and_ends_the_renting(cloud: Cloud, bamboo: AwsBamboo) -> None:
    """It is as large as it needs to be when it is looked at."""
    cloud.rack.disk_bytes = SMALL_DISK_BYTES
    held = cloud.rack.hold("environment")
    num_nodes = 3
    up = bamboo.begin_up(num_nodes)
    bamboo.until(lambda: held.num_met() == num_nodes, "all to be installing")
    for machine in cloud.rack.machines:
        machine.run("head -c 1G /dev/zero > /var/full || true")
    held.lift()
    ended = up.end()
    assert ended.exit_code == 1
    assert "no further node is rented: 3 machines in a row could not be made nodes" in ended.stderr
    assert "all in the step `environment`" in ended.stderr
    assert "No space left on device" in ended.stderr
    assert "aws.volume_gb" in ended.stderr
    bamboo.until(lambda: not cloud.aws.alive(), "all to be given back")
    bamboo.goes_down(num_nodes)
