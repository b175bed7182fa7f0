"""What EC2 is sent, as a function of what is wanted. Pure; every request is in ``tests/providers`` word for word."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from bamboo_cli.keys import KeyPair

CLUSTER_TAG = "bamboo:cluster"
NODE_TAG = "bamboo:node"
TOKEN_TAG = "bamboo:token"
NAME_PREFIX = "bamboo-"
SPOT_PRODUCT = "Linux/UNIX"
SSH_PORT = 22
OUR_RULE = "bamboo: SSH of the coordinator"

Request = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One instance that is wanted."""

    cluster_id: str
    node_id: str
    token: str
    zone: str
    instance_type: str
    is_spot: bool
    max_price_usd_per_hour: float | None
    image_id: str
    root_device: str
    volume_gb: int
    subnet_id: str
    group_id: str | None
    """None: the VPC's default one, to try the request out before there is another."""
    is_public: bool
    """With a public address."""
    host_key: KeyPair
    """That it shows to whoever connects."""
    instance_profile: str | None = None
    """Whose role its processes act as; None: they have no credentials."""


def name_of(cluster_id: str) -> str:
    """Of the cluster's group and key pair."""
    return f"{NAME_PREFIX}{cluster_id}"


def cluster_of(name: str) -> str:
    """Of an instance whose tags are gone, by its key pair's name; empty: it is not ours."""
    return name.removeprefix(NAME_PREFIX) if name.startswith(NAME_PREFIX) else ""


def node_of(token: str) -> str:
    """Of an instance whose tags are gone: ``n3`` of the token ``demo-1a2b3c-n3-1.2``; empty: it says none."""
    found = re.fullmatch(r".+-(n\d+)-\d+(\.\d+)?", token)
    return found.group(1) if found else ""


def tags(cluster_id: str, name: str, **more: str) -> list[dict[str, str]]:
    pairs = {"Name": name, CLUSTER_TAG: cluster_id, **more}
    return [{"Key": key, "Value": value} for key, value in pairs.items()]


def tagged(kinds: Iterable[str], pairs: list[dict[str, str]]) -> list[dict[str, Any]]:
    return [{"ResourceType": kind, "Tags": pairs} for kind in kinds]


def of_cluster(cluster_id: str) -> list[dict[str, Any]]:
    """A filter. Values may hold wildcards; a cluster's id has none."""
    return [{"Name": f"tag:{CLUSTER_TAG}", "Values": [cluster_id]}]


def of_token(token: str) -> list[dict[str, Any]]:
    return [{"Name": f"tag:{TOKEN_TAG}", "Values": [token]}]


# --- an instance -------------------------------------------------------------------------------------------------


def run_instances(wanted: Launch) -> Request:
    """The same for the same ``wanted``, so that it may be repeated under its token."""
    name = f"{name_of(wanted.cluster_id)}-{wanted.node_id}"
    kinds = ["instance", "volume", "network-interface"] + (["spot-instances-request"] if wanted.is_spot else [])
    marks = tags(wanted.cluster_id, name, **{NODE_TAG: wanted.node_id, TOKEN_TAG: wanted.token})
    request: Request = {
        "ClientToken": wanted.token,
        "MinCount": 1,
        "MaxCount": 1,
        "ImageId": wanted.image_id,
        "InstanceType": wanted.instance_type,
        "KeyName": name_of(wanted.cluster_id),
        "Placement": {"AvailabilityZone": wanted.zone},
        "NetworkInterfaces": [
            {
                "DeviceIndex": 0,
                "SubnetId": wanted.subnet_id,
                **({"Groups": [wanted.group_id]} if wanted.group_id else {}),
                "AssociatePublicIpAddress": wanted.is_public,
                "DeleteOnTermination": True,
            }
        ],
        "BlockDeviceMappings": [
            {
                "DeviceName": wanted.root_device,
                "Ebs": {
                    "VolumeSize": wanted.volume_gb,
                    "VolumeType": "gp3",
                    "Encrypted": True,
                    "DeleteOnTermination": True,
                },
            }
        ],
        "MetadataOptions": {
            "HttpEndpoint": "enabled",
            "HttpTokens": "required",
            "HttpPutResponseHopLimit": 1,
            "InstanceMetadataTags": "disabled",
        },
        "InstanceInitiatedShutdownBehavior": "terminate",
        "UserData": user_data(wanted.host_key),
        "TagSpecifications": tagged(kinds, marks),
    }
    if wanted.instance_profile is not None:
        request["IamInstanceProfile"] = {"Name": wanted.instance_profile}
    if wanted.is_spot:
        options: dict[str, Any] = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
        if wanted.max_price_usd_per_hour is not None:
            options["MaxPrice"] = f"{wanted.max_price_usd_per_hour:.6f}"
        request["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": options}
    return request


def user_data(host_key: KeyPair) -> str:
    """Cloud-init: the host key that we expect, and no other. JSON is YAML, and needs no care with a key's line breaks.

    Nothing in it opens anything: whoever reads the user data could pose as that instance, no more.
    """
    document = {
        "ssh_deletekeys": True,
        "ssh_keys": {"ed25519_private": host_key.private, "ed25519_public": host_key.public},
        "disable_root": True,
        "ssh_pwauth": False,
        "package_update": False,
        "package_upgrade": False,
    }
    return "#cloud-config\n" + json.dumps(document, indent=1) + "\n"


# --- what instances need -----------------------------------------------------------------------------------------


def create_group(cluster_id: str, vpc_id: str) -> Request:
    name = name_of(cluster_id)
    return {
        "GroupName": name,
        "Description": f"Bamboo cluster {cluster_id}: SSH from its coordinator, anything among its nodes",
        "VpcId": vpc_id,
        "TagSpecifications": tagged(["security-group"], tags(cluster_id, name)),
    }


def open_group_within(group_id: str) -> Request:
    return {"GroupId": group_id, "IpPermissions": [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group_id}]}]}


def open_group_to(group_id: str, block: str) -> Request:
    """SSH from a block of addresses, IPv4 or IPv6. Its description says that the rule is ours to take back."""
    return _ssh_rule(group_id, block, {"Description": OUR_RULE})


def close_group_to(group_id: str, block: str) -> Request:
    return _ssh_rule(group_id, block, {})


def _ssh_rule(group_id: str, block: str, words: dict[str, str]) -> Request:
    ranges: dict[str, Any] = (
        {"Ipv6Ranges": [{"CidrIpv6": block, **words}]} if ":" in block else {"IpRanges": [{"CidrIp": block, **words}]}
    )
    permission = {"IpProtocol": "tcp", "FromPort": SSH_PORT, "ToPort": SSH_PORT} | ranges
    return {"GroupId": group_id, "IpPermissions": [permission]}


def import_key(cluster_id: str, key: KeyPair) -> Request:
    name = name_of(cluster_id)
    return {
        "KeyName": name,
        "PublicKeyMaterial": key.public.encode("ascii"),
        "TagSpecifications": tagged(["key-pair"], tags(cluster_id, name)),
    }


def find_subnets(subnet_ids: Sequence[str]) -> Request:
    """Those, or the region's default ones. A filter, since naming a subnet of another region would be an error."""
    if subnet_ids:
        return {"Filters": [{"Name": "subnet-id", "Values": list(subnet_ids)}]}
    return {"Filters": [{"Name": "default-for-az", "Values": ["true"]}]}


# --- prices ------------------------------------------------------------------------------------------------------


def spot_prices(types: Sequence[str], since: datetime) -> Request:
    """From ``since`` on, with the price that was in force then."""
    return {"InstanceTypes": list(types), "ProductDescriptions": [SPOT_PRODUCT], "StartTime": since}


def on_demand_prices(instance_type: str, region: str) -> Request:
    wanted = {
        "instanceType": instance_type,
        "regionCode": region,
        "operatingSystem": "Linux",
        "tenancy": "Shared",
        "preInstalledSw": "NA",
        "capacitystatus": "Used",
        "marketoption": "OnDemand",
    }
    return {
        "ServiceCode": "AmazonEC2",
        "Filters": [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in wanted.items()],
    }


def placement_scores(types: Sequence[str], num_nodes: int, region: str) -> Request:
    """Per zone; at least three types are wanted by EC2 for a score that says much."""
    return {
        "InstanceTypes": list(types),
        "TargetCapacity": num_nodes,
        "TargetCapacityUnitType": "units",
        "SingleAvailabilityZone": True,
        "RegionNames": [region],
    }


# --- a preemption on purpose -------------------------------------------------------------------------------------


def interruption(instance_arn: str, role_arn: str, token: str) -> Request:
    """An experiment that interrupts one spot instance after the usual two minutes; no stop condition."""
    return {
        "clientToken": token,
        "description": f"bamboo preempt {instance_arn.rpartition('/')[2]}",
        "roleArn": role_arn,
        "stopConditions": [{"source": "none"}],
        "targets": {
            "victim": {
                "resourceType": "aws:ec2:spot-instance",
                "resourceArns": [instance_arn],
                "selectionMode": "ALL",
            }
        },
        "actions": {
            "interrupt": {
                "actionId": "aws:ec2:send-spot-instance-interruptions",
                "parameters": {"durationBeforeInterruption": "PT2M"},
                "targets": {"SpotInstances": "victim"},
            }
        },
    }
