"""Who may connect to an instance: exactly what is needed, and nobody else."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bamboo_cli.providers.aws import AwsProvider
from bamboo_cli.providers.aws_cloud import network
from bamboo_cli.providers.aws_cloud.known import AwsSettings
from tests.aws.double import AwsDouble
from tests.providers.contract import node_config

US = "203.0.113.7/32"
SETTINGS = AwsSettings(regions=("us-east-1",), types=("g5.xlarge",), ssh_from=(US,))

Rent = Callable[[AwsSettings], Any]


@pytest.fixture
def rent(aws_here: AwsDouble, tmp_path: Path) -> Rent:
    """An instance; as EC2 describes it."""

    def rented(settings: AwsSettings) -> Any:
        provider = AwsProvider(tmp_path / "cluster", settings)
        number = len(aws_here.lives()) + 1
        made = provider.create(provider.offers()[0], node_config(f"n{number}"), f"t{number}")
        found = aws_here.client().describe_instances(InstanceIds=[made.instance_id])
        return found["Reservations"][0]["Instances"][0]

    return rented


def rules(aws: AwsDouble, instance: Any) -> set[tuple[str, Any, Any, str]]:
    """Of all groups of the instance: protocol, first and last port, source."""
    ids = [group["GroupId"] for group in instance["SecurityGroups"]]
    groups = aws.client().describe_security_groups(GroupIds=ids)["SecurityGroups"]
    return {
        (p["IpProtocol"], p.get("FromPort", -1), p.get("ToPort", -1), source)
        for group in groups
        for p in group["IpPermissions"]
        for source in [
            *(one["CidrIp"] for one in p["IpRanges"]),
            *(one["CidrIpv6"] for one in p.get("Ipv6Ranges", ())),
            *("itself" if one["GroupId"] == group["GroupId"] else one["GroupId"] for one in p["UserIdGroupPairs"]),
        ]
    }


def ssh(block: str) -> tuple[str, int, int, str]:
    return ("tcp", 22, 22, block)


WITHIN = ("-1", -1, -1, "itself")


def test_ssh_comes_in_from_us_and_everything_from_the_other_nodes_and_nothing_else(aws: AwsDouble, rent: Rent) -> None:
    instance = rent(SETTINGS)

    assert rules(aws, instance) == {ssh(US), WITHIN}
    assert len(instance["NetworkInterfaces"]) == len(instance["SecurityGroups"]) == 1


def test_behind_a_bastion_ssh_comes_in_from_it_alone_and_the_instance_has_no_public_address(
    aws: AwsDouble, rent: Rent
) -> None:
    instance = rent(replace(SETTINGS, bastion="me@bastion.example", ssh_from=("10.0.0.4/32",)))

    assert rules(aws, instance) == {ssh("10.0.0.4/32"), WITHIN}
    assert "PublicIpAddress" not in instance


def test_an_address_that_we_have_no_more_is_let_in_no_more(
    aws: AwsDouble, rent: Rent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be anybody's by now. A rule that the user has added is theirs."""
    monkeypatch.setattr(network, "own_block", lambda: US)
    first = rent(replace(SETTINGS, ssh_from=None))
    theirs = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": "198.51.100.0/24"}]}
    group_id = first["SecurityGroups"][0]["GroupId"]
    aws.client().authorize_security_group_ingress(GroupId=group_id, IpPermissions=[theirs])
    monkeypatch.setattr(network, "own_block", lambda: "203.0.113.99/32")
    rent(replace(SETTINGS, ssh_from=None))

    assert rules(aws, first) == {ssh("203.0.113.99/32"), ssh("198.51.100.0/24"), WITHIN}


def test_a_group_whose_tag_was_taken_off_is_found_again_and_ended(aws: AwsDouble, rent: Rent, tmp_path: Path) -> None:
    first = rent(SETTINGS)
    group_id = first["SecurityGroups"][0]["GroupId"]
    aws.client().delete_tags(Resources=[group_id], Tags=[{"Key": "bamboo:cluster"}])
    second = rent(SETTINGS)
    assert second["SecurityGroups"][0]["GroupId"] == group_id
    provider = AwsProvider(tmp_path / "cluster", SETTINGS)
    provider.terminate(tuple(instance["InstanceId"] for instance in (first, second)))
    provider.clean(node_config().cluster_id)
    assert aws.remains() == []
