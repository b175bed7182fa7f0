"""A quota that is too small: told before some nodes cost money while others are waited for."""

import pytest

from tests.aws.double import AwsDouble
from tests.cli.aws_job import bamboo, environment, job, refusal
from tests.cli.test_aws import findings

__all__ = ["environment", "job"]


def test_a_quota_which_takes_days_is_told_though_there_is_no_vpc_yet(aws: AwsDouble, job: str) -> None:
    aws.account.quotas[("us-east-1", "L-3819A6DF")] = 0.0
    for subnet in aws.client().describe_subnets()["Subnets"]:
        aws.client().delete_subnet(SubnetId=subnet["SubnetId"])

    found = findings(bamboo("check", "aws", job, "--json"))

    assert found["us-east-1 subnets"]["verdict"] == found["us-east-1 g5.xlarge quota"]["verdict"] == "problem"


@pytest.mark.parametrize(
    ("types", "quotas", "is_told"),
    [
        ("[g5.xlarge]", {"L-3819A6DF": 16.0}, False),
        ("[g5.xlarge]", {"L-3819A6DF": 12.0}, True),
        ("[g5.xlarge,p4d.24xlarge]", {"L-3819A6DF": 12.0, "L-7212CCBC": 96.0}, False),  # three and one
        ("[g5.xlarge,p4d.24xlarge]", {"L-3819A6DF": 12.0, "L-7212CCBC": 0.0}, True),
    ],
)
def test_before_up_asks_it_tells_that_a_quota_is_too_small_for_certain(
    aws: AwsDouble, job: str, types: str, quotas: dict[str, float], is_told: bool
) -> None:
    """What comes of it: some nodes cost money, and wait for others that do not come."""
    aws.account.quotas |= {("us-east-1", code): value for code, value in quotas.items()}

    asked = bamboo("up", job, "--set", f"aws.types={types}")

    assert "Nobody can answer" in refusal(asked).message
    assert ("has a quota for 3 of 4 nodes" in asked.stderr) == is_told


def test_a_quota_that_may_not_be_read_is_not_guessed_at(aws: AwsDouble, job: str) -> None:
    aws.account.quotas[("us-east-1", "L-3819A6DF")] = 0.0
    aws.account.allowed = ("ec2:*", "ssm:*", "pricing:*")

    assert "quota" not in bamboo("up", job).stderr
