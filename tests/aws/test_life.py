"""What the suite for a real account does (tests/cloud), on the double: its own mistakes shall cost nobody money."""

import pytest

from tests.aws.account import ACCOUNT_ID
from tests.aws.conftest import Cloud
from tests.aws.product import AwsBamboo
from tests.aws.vm import namespaces
from tests.cloud import life
from tests.cloud.left import left

pytestmark = [pytest.mark.vms, pytest.mark.soak, pytest.mark.timeout(900)]

MAX_USD = 1.0


def test_two_rented_nodes_lose_nothing_to_a_notice_and_nothing_is_left(cloud: Cloud, bamboo: AwsBamboo) -> None:
    """Two minutes of it are the notice of the Fault Injection Service."""
    job = life.job(
        bamboo.folder,
        url=str(bamboo.shared / "checkpoints"),
        types=["t3.medium"],
        ssh_from=[f"{namespaces.PUBLIC_GATEWAY}/32"],
        instance_profile="bamboo-node",
        fault_injection_role=f"arn:aws:iam::{ACCOUNT_ID}:role/bamboo-fis",
    )

    cluster_id = life.live(bamboo, job, max_usd=MAX_USD)

    assert [call.action for call in cloud.aws.called("StartExperiment")] == ["StartExperiment"]
    assert cloud.aws.account.experiments == {}
    assert left(cloud.aws.client(), cluster_id) == []
    assert cloud.aws.remains() == []
