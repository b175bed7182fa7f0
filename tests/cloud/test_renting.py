"""Rents on a real account, for some cents; docs/aws.md says what it takes, what it costs and how to run it.

Runs only where all of ``NEEDED`` is set, and only as far as ``BAMBOO_TEST_AWS_MAX_USD`` goes.
"""

import os
from pathlib import Path

import pytest

from tests.cloud import life
from tests.cloud.left import left
from tests.cluster import Bamboo

MAX_USD = "BAMBOO_TEST_AWS_MAX_USD"
URL, PROFILE, ROLE = "BAMBOO_TEST_AWS_URL", "BAMBOO_TEST_AWS_INSTANCE_PROFILE", "BAMBOO_TEST_AWS_FIS_ROLE"
NEEDED = ("BAMBOO_TEST_AWS", MAX_USD, URL, PROFILE, ROLE)
REGION = os.environ.get("AWS_REGION", "us-east-1")
TYPE = os.environ.get("BAMBOO_TEST_AWS_TYPE", "t3.medium")
CPU_TORCH = "https://download.pytorch.org/whl/cpu"
missing = [name for name in NEEDED if not os.environ.get(name)]

pytestmark = [
    pytest.mark.account,
    pytest.mark.skipif(bool(missing), reason=f"costs money; takes {', '.join(missing)}"),
    pytest.mark.timeout(life.HOURS * 3600),
]


def test_two_rented_nodes_lose_nothing_to_a_notice_and_nothing_is_left(bamboo: Bamboo, tmp_path: Path) -> None:
    import boto3

    job = life.job(
        tmp_path,
        url=os.environ[URL],
        regions=[REGION],
        types=[TYPE],
        torch_index_url=CPU_TORCH,
        instance_profile=os.environ[PROFILE],
        fault_injection_role=os.environ[ROLE],
    )

    cluster_id = life.live(bamboo, job, max_usd=float(os.environ[MAX_USD]))

    assert left(boto3.client("ec2", region_name=REGION), cluster_id) == []
