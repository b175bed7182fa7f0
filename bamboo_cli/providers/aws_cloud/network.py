"""Where instances are put, and who may talk to them: subnets, the cluster's group, its key pair.

All of it can be done twice: what is there is completed, not made again.
"""

import ipaddress
import time
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bamboo_cli.errors import CloudError, RequestRefusedError
from bamboo_cli.keys import KeyPair
from bamboo_cli.providers.aws_cloud import operations, regions, requests
from bamboo_cli.providers.aws_cloud.calls import Calls

OWN_ADDRESS_URL = "https://checkip.amazonaws.com"
OWN_ADDRESS_TIMEOUT_S = 10
SETTLE_S = 30.0
"""EC2 may not know at once what it has just made."""
SETTLE_POLL_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where an instance can be put."""

    region: str
    zone: str
    zone_id: str
    """The same physical zone in every account: ``use1-az2``."""
    subnet_id: str
    vpc_id: str


def find_places(calls: Calls, region: str, subnet_ids: Sequence[str], zones: Sequence[str]) -> tuple[Place, ...]:
    """One per zone. Raises RequestRefusedError where there is none, or they are in several VPCs; CloudError."""
    try:
        described = calls.items(operations.SUBNETS, region, **requests.find_subnets(subnet_ids))
    except CloudError as error:
        raise regions.explained(calls, region, error) from error
    places = places_of(region, described, subnet_ids)
    if subnet_ids and not places:
        raise RequestRefusedError(
            f"{region}: there is no subnet {' or '.join(subnet_ids)}",
            next_step=f"Correct `aws.subnets`: `aws ec2 describe-subnets --region {region}` lists what there is.",
        )
    if not places:
        raise RequestRefusedError(
            f"{region}: there is no default VPC with subnets",
            next_step=f"`aws ec2 create-default-vpc --region {region}` makes one; or give `aws.subnets`.",
        )
    if len({place.vpc_id for place in places}) > 1:
        raise RequestRefusedError(
            f"{region}: the subnets are in several VPCs, so their instances would not reach each other",
            next_step="Give `aws.subnets` of one VPC.",
        )
    chosen = tuple(place for place in places if not zones or place.zone in zones)
    here = [zone for zone in zones if zone.startswith(region)]
    if here and not chosen:
        raise RequestRefusedError(
            f"{region}: there is no subnet in {', '.join(here)}; there are some in "
            f"{', '.join(sorted(place.zone for place in places)) or 'no zone'}",
            next_step="Correct `aws.zones`, or give `aws.subnets`.",
        )
    return chosen


def places_of(region: str, subnets: Iterable[Mapping[str, Any]], subnet_ids: Sequence[str]) -> list[Place]:
    """The first subnet of each zone, in the order given. Pure."""
    order = {subnet_id: index for index, subnet_id in enumerate(subnet_ids)}
    chosen: dict[str, Place] = {}
    for subnet in sorted(subnets, key=lambda s: (order.get(s["SubnetId"], 0), s["AvailabilityZone"])):
        place = Place(
            region=region,
            zone=subnet["AvailabilityZone"],
            zone_id=subnet.get("AvailabilityZoneId", ""),
            subnet_id=subnet["SubnetId"],
            vpc_id=subnet["VpcId"],
        )
        chosen.setdefault(place.zone, place)
    return list(chosen.values())


def own_block() -> str:
    """The address that AWS sees us under, as a block. Raises CloudError."""
    try:
        with urllib.request.urlopen(OWN_ADDRESS_URL, timeout=OWN_ADDRESS_TIMEOUT_S) as answer:
            address = ipaddress.ip_address(answer.read(64).decode("ascii").strip())
    except (OSError, ValueError) as error:
        raise CloudError(
            f"{OWN_ADDRESS_URL} does not tell this machine's public address: {error}",
            next_step="Set `aws.ssh_from` to the block of addresses that this machine connects from.",
        ) from error
    return f"{address}/{address.max_prefixlen}"


# --- the group ---------------------------------------------------------------------------------------------------


def ensure_group(calls: Calls, region: str, cluster_id: str, vpc_id: str, blocks: Sequence[str]) -> str:
    """The id of the cluster's group, with all its rules. Raises CloudError."""
    group = _find_group(calls, region, cluster_id, vpc_id)
    if group is None:
        calls.call(
            operations.CREATE_GROUP,
            region,
            expected=("InvalidGroup.Duplicate",),
            **requests.create_group(cluster_id, vpc_id),
        )
        group = _settled(lambda: _find_group(calls, region, cluster_id, vpc_id), f"{region}: the group just made")
    for rule in missing_rules(group, blocks):
        calls.call(operations.OPEN_GROUP, region, expected=("InvalidPermission.Duplicate",), **rule)
    for rule in spare_rules(group, blocks):
        calls.call(operations.CLOSE_GROUP, region, expected=("InvalidPermission.NotFound",), **rule)
    return str(group["GroupId"])


def missing_rules(group: Mapping[str, Any], blocks: Sequence[str]) -> list[requests.Request]:
    """What has to be asked for still. Pure."""
    group_id = group["GroupId"]
    permissions = group.get("IpPermissions", ())
    open_to = {
        entry.get("CidrIp") or entry.get("CidrIpv6")
        for permission in permissions
        if permission.get("FromPort") == requests.SSH_PORT
        for entry in (*permission.get("IpRanges", ()), *permission.get("Ipv6Ranges", ()))
    }
    within = any(
        pair.get("GroupId") == group_id
        for permission in permissions
        if permission.get("IpProtocol") == "-1"
        for pair in permission.get("UserIdGroupPairs", ())
    )
    rules = [] if within else [requests.open_group_within(group_id)]
    return rules + [requests.open_group_to(group_id, block) for block in blocks if block not in open_to]


def spare_rules(group: Mapping[str, Any], blocks: Sequence[str]) -> list[requests.Request]:
    """Rules of ours for addresses that we had: they may be anybody's by now. What others have let in is left. Pure."""
    ours = {
        entry.get("CidrIp") or entry.get("CidrIpv6")
        for permission in group.get("IpPermissions", ())
        for entry in (*permission.get("IpRanges", ()), *permission.get("Ipv6Ranges", ()))
        if entry.get("Description") == requests.OUR_RULE
    }
    return [requests.close_group_to(group["GroupId"], block) for block in sorted(ours - set(blocks))]


def _find_group(calls: Calls, region: str, cluster_id: str, vpc_id: str) -> Mapping[str, Any] | None:
    """By its name, which is unique in a VPC, and cannot be taken off like a tag."""
    named = {"group-name": requests.name_of(cluster_id), "vpc-id": vpc_id}
    filters = [{"Name": name, "Values": [value]} for name, value in named.items()]
    found = calls.items(operations.GROUPS, region, Filters=filters)
    return found[0] if found else None


def _settled(look: Any, what: str) -> Any:
    deadline = time.monotonic() + SETTLE_S
    while (found := look()) is None:
        if time.monotonic() > deadline:
            raise CloudError(f"{what} is not to be seen after {SETTLE_S:.0f} s", next_step="It is tried again.")
        time.sleep(SETTLE_POLL_S)
    return found


# --- the key pair ------------------------------------------------------------------------------------------------


def ensure_key(calls: Calls, region: str, cluster_id: str, key: KeyPair) -> None:
    """The cluster's key pair is ours: one of an earlier folder, whose private half is gone, is replaced."""
    name = requests.name_of(cluster_id)
    found = calls.call(
        operations.KEYS,
        region,
        expected=("InvalidKeyPair.NotFound",),
        KeyNames=[name],
        IncludePublicKey=True,
    )
    pairs = (found or {}).get("KeyPairs", ())
    if pairs:
        if same_key(pairs[0].get("PublicKey"), key.public):
            return
        calls.ask(operations.DELETE_KEY, region, KeyName=name)
    calls.call(
        operations.IMPORT_KEY, region, expected=("InvalidKeyPair.Duplicate",), **requests.import_key(cluster_id, key)
    )


def same_key(one: str | None, other: str) -> bool:
    """Lines may end in a comment. None (not told) is taken for the same."""
    return one is None or one.split()[:2] == other.split()[:2]
