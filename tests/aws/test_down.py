"""``bamboo down`` on EC2's double: what it may not end it names, and what is not of its cluster it leaves alone."""

import pytest

from tests.aws.conftest import Cloud
from tests.aws.product import AwsBamboo

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
