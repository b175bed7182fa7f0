"""Places where nothing can be rented: said before anything is, each by its name and with what to do."""

import json
from typing import Any

import pytest

from tests.aws.double import AwsDouble
from tests.cli.aws_job import bamboo, environment, job, refusal

__all__ = ["environment", "job"]

UP = (("up", "--dry-run"), ("up", "--yes"))


def problems(job: str, *settings: str) -> dict[str, Any]:
    """Of ``bamboo check aws``, by subject."""
    result = bamboo("check", "aws", job, "--json", *(word for s in settings for word in ("--set", s)))
    refusal(result)
    return {found["subject"]: found for found in json.loads(result.stdout) if found["verdict"] == "problem"}


def without_subnet(aws: AwsDouble, zone: str) -> None:
    ec2 = aws.client()
    for subnet in ec2.describe_subnets(Filters=[{"Name": "availability-zone", "Values": [zone]}])["Subnets"]:
        ec2.delete_subnet(SubnetId=subnet["SubnetId"])


@pytest.mark.parametrize("command", UP)
def test_a_zone_without_a_subnet_is_named_and_so_are_those_that_have_one(
    aws: AwsDouble, job: str, command: tuple[str, ...]
) -> None:
    without_subnet(aws, "us-east-1b")

    error = refusal(bamboo(command[0], job, *command[1:], "--set", "aws.zones=[us-east-1b]"))

    assert "us-east-1: there is no subnet in us-east-1b; there are some in us-east-1a, us-east-1c" in error.message
    assert "aws.zones" in error.next_step
    assert aws.remains() == []


def test_check_says_so_too_and_of_one_zone_among_several(aws: AwsDouble, job: str) -> None:
    without_subnet(aws, "us-east-1b")

    alone = problems(job, "aws.zones=[us-east-1b]")
    among = problems(job, "aws.zones=[us-east-1a,us-east-1b,us-east-1z]")

    assert "there is no subnet in us-east-1b" in alone["us-east-1 subnets"]["text"]
    assert among["us-east-1 zones"]["text"] == "there is no subnet in us-east-1b, us-east-1z"


@pytest.mark.parametrize("command", UP)
def test_without_a_default_vpc_the_way_to_one_is_shown(aws: AwsDouble, job: str, command: tuple[str, ...]) -> None:
    ec2 = aws.client()
    for subnet in ec2.describe_subnets()["Subnets"]:
        ec2.delete_subnet(SubnetId=subnet["SubnetId"])

    error = refusal(bamboo(command[0], job, *command[1:]))

    assert "us-east-1: there is no default VPC with subnets" in error.message
    assert "aws ec2 create-default-vpc --region us-east-1" in error.next_step
    assert "aws.subnets" in error.next_step
    assert "us-east-1 subnets" in problems(job)


@pytest.mark.parametrize("command", (*UP, ("prices",)))
def test_a_region_that_is_not_enabled_is_not_taken_for_wrong_credentials(
    aws: AwsDouble, job: str, command: tuple[str, ...]
) -> None:
    """AWS says that it cannot validate them."""
    aws.account.not_enabled = ("me-south-1",)

    error = refusal(bamboo(command[0], job, *command[1:], "--set", "aws.regions=[me-south-1]"))

    assert error.message == "me-south-1 is not enabled for this account"
    assert "aws account enable-region --region-name me-south-1" in error.next_step


def test_check_says_so_too_in_whatever_order_regions_come(aws: AwsDouble, job: str) -> None:
    aws.account.not_enabled = ("me-south-1",)
    found = problems(job, "aws.regions=[me-south-1,us-east-1]")
    assert [f["text"] for s, f in found.items() if s.startswith("me-south-1")] == [
        "me-south-1 is not enabled for this account"
    ]
    assert not any(subject.startswith("us-east-1") for subject in found)


def test_a_region_that_is_not_enabled_does_not_keep_us_from_renting_in_another(aws: AwsDouble, job: str) -> None:
    aws.account.not_enabled = ("me-south-1",)
    result = bamboo("up", job, "--dry-run", "--json", "--set", "aws.regions=[me-south-1,us-east-1]")
    assert result.exit_code == 0, result.exception
    assert {zone["name"][:-1] for zone in json.loads(result.stdout)["zones"]} == {"us-east-1"}


def test_a_region_that_there_is_not_is_said_to_be_none_and_the_nearest_is_named(job: str) -> None:
    error = refusal(bamboo("up", job, "--dry-run", "--set", "aws.regions=[us-esat-1]"))
    assert error.message == "there is no region us-esat-1"
    assert error.next_step.startswith("Correct `aws.regions`: did you mean us-") and "us-east-1" in error.next_step


@pytest.mark.parametrize("command", (*UP, ("prices",)))
def test_a_type_that_there_is_not_is_named_whoever_asks(job: str, command: tuple[str, ...]) -> None:
    """Asked for prices, EC2 says only that an argument is wrong."""
    error = refusal(bamboo(command[0], job, *command[1:], "--set", "aws.types=[g5.xlarge,g6.xlrge]"))
    assert "instance types do not exist: [g6.xlrge]" in error.message
    assert "aws.types" in error.next_step and "bamboo prices" in error.next_step


@pytest.mark.parametrize("command", UP)
def test_subnets_that_there_are_not_are_not_taken_for_a_lack_of_offers(job: str, command: tuple[str, ...]) -> None:
    error = refusal(bamboo(command[0], job, *command[1:], "--set", "aws.subnets=[subnet-12345678]"))
    assert error.message == "us-east-1: there is no subnet subnet-12345678"
    assert "aws ec2 describe-subnets --region us-east-1" in error.next_step


def test_a_price_below_that_of_every_zone_is_told_with_the_lowest_that_there_is(aws: AwsDouble, job: str) -> None:
    """It may fall: so it is no reason to refuse."""
    limit = ("--set", "aws.max_price_usd_per_hour=0.01")

    asked = bamboo("up", job, *limit)

    assert "Nobody can answer" in refusal(asked).message
    assert "no zone sells for `aws.max_price_usd_per_hour`, $0.0100: the cheapest is g" in asked.stderr
    assert "SpotMaxPriceTooLow" in refusal(bamboo("up", job, "--dry-run", *limit)).message
    assert "us-east-1 price" in problems(job, "aws.max_price_usd_per_hour=0.01")
    assert aws.remains() == []


def test_a_bastion_that_cannot_be_reached_is_told_before_anything_is_rented(aws: AwsDouble, job: str) -> None:
    there = ("aws.bastion=me@127.0.0.1:9", "aws.ssh_from=[10.0.0.4/32]")

    error = refusal(bamboo("up", job, "--yes", "--set", there[0], "--set", there[1]))

    assert error.message == "the bastion me@127.0.0.1:9 cannot be reached: Connection refused"
    assert "`ssh -p 9 me@127.0.0.1` from this machine has to work without a question" in error.next_step
    assert problems(job, *there)["bastion"]["text"] == error.message
    assert aws.called("RunInstances")[-1].is_dry_run and aws.remains() == []


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("aws.bastion=me@host:ssh", "user@host or user@host:port"),
        ("aws.bastion=me@fd00::1", "user@host or user@host:port"),
        ("aws.types=[gpu]", "an instance type such as g5.xlarge"),
        ("aws.regions=[everywhere]", "a region such as us-east-1"),
        ("aws.regions=[]", "at least 1"),
        ("aws.zones=[us-west-2a]", "is in none of the regions us-east-1"),
        ("aws.subnets=[subnet-xyz]", "a subnet such as subnet-0a1b2c3d"),
        ("aws.ssh_from=[203.0.113.7/8]", "is no block of addresses"),
        ("aws.ssh_from=anywhere", "auto"),
        ("aws.max_price_usd_per_hour=-1", "greater than 0"),
        ("aws.max_price_usd_per_hour=nan", "finite"),
        ("aws.volume_gb=1", "greater than or equal to 8"),
        ("aws.orphan_after_min=-5", "greater than or equal to 0"),
        ("aws.image=ami", "write `auto`, an id"),
        ("aws.instance_profile=a b", "the name of an instance profile"),
        ("aws.regoins=[us-east-1]", "regions"),
    ],
)
def test_nonsense_is_refused_by_its_key_before_aws_is_asked(aws: AwsDouble, job: str, setting: str, words: str) -> None:
    error = refusal(bamboo("up", job, "--yes", "--set", setting))

    assert error.exit_code == 2
    assert setting.partition("=")[0].removeprefix("aws.")[:5] in error.message
    assert words in f"{error.message} {error.next_step}"
    assert aws.calls == []
