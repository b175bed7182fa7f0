"""What RunInstances looks at before it gives anything: the arguments, then the quota, then what the zone has."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from moto.ec2.exceptions import EC2ClientError

from tests.aws import market
from tests.aws.account import Account
from tests.aws.market import PricePoint

MAX_USER_DATA_BYTES = 16384
LOWEST_MAX_PRICE_USD = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    instance_type: str
    zone: str
    subnet_id: str
    group_ids: tuple[str, ...]
    min_count: int
    max_count: int
    is_spot: bool
    has_public_address: bool
    deletes_card: bool
    request_tags: Mapping[str, str]
    """Of the spot request."""
    card_tags: Mapping[str, str]


def check(asked: Mapping[str, Any], account: Account, backend: Any, region: str) -> Launch:
    """Raises EC2ClientError, as EC2 words it."""
    instance_type = asked.get("InstanceType", "m1.small")
    refuse_unknown_type(instance_type)
    _check_image(asked, backend)
    name = asked.get("KeyName")
    if name is not None and name not in backend.key_pairs:
        raise EC2ClientError("InvalidKeyPair.NotFound", f"The key pair '{name}' does not exist")
    profile = (asked.get("IamInstanceProfile") or {}).get("Name")
    if profile is not None and profile not in account.instance_profiles:
        raise EC2ClientError(
            "InvalidParameterValue",
            f"Value ({profile}) for parameter iamInstanceProfile.name is invalid. Invalid IAM Instance Profile name",
        )
    if len(asked.get("UserData") or "") * 3 // 4 > MAX_USER_DATA_BYTES:
        raise EC2ClientError("InvalidParameterValue", "User data is limited to 16384 bytes")
    low, high = int(asked["MinCount"]), int(asked["MaxCount"])
    if not 1 <= low <= high:
        raise EC2ClientError("InvalidParameterValue", f"Invalid value '{low}' for minCount or '{high}' for maxCount")
    card = _primary_card(asked)
    subnet = _subnet(asked, card, backend, region, instance_type)
    zones = market.zones_with(region, instance_type)
    if subnet.availability_zone not in zones:
        raise EC2ClientError(
            "Unsupported",
            f"Your requested instance type ({instance_type}) is not supported in your requested Availability Zone "
            f"({subnet.availability_zone}). Please retry your request by not specifying an Availability Zone or "
            f"choosing {', '.join(zones)}.",
        )
    group_ids = tuple(card.get("Groups") or asked.get("SecurityGroupIds") or ())
    for group_id in group_ids:
        if backend.get_security_group_from_id(group_id) is None:
            raise EC2ClientError("InvalidGroup.NotFound", f"The security group '{group_id}' does not exist")
    market_options = asked.get("InstanceMarketOptions") or {}
    is_spot = market_options.get("MarketType") == "spot"
    if is_spot:
        _check_spot(market_options.get("SpotOptions") or {}, account, instance_type, subnet.availability_zone)
    public = card.get("AssociatePublicIpAddress")
    return Launch(
        instance_type=instance_type,
        zone=subnet.availability_zone,
        subnet_id=subnet.id,
        group_ids=group_ids or (backend.get_security_group_by_name_or_id("default", subnet.vpc_id).id,),
        min_count=low,
        max_count=high,
        is_spot=is_spot,
        has_public_address=str(subnet.map_public_ip_on_launch).lower() == "true" if public is None else bool(public),
        deletes_card=bool(card.get("DeleteOnTermination", True)),
        request_tags=_tags(asked, "spot-instances-request"),
        card_tags=_tags(asked, "network-interface"),
    )


def count(launch: Launch, account: Account, region: str) -> int:
    """As many as there can be, up to MaxCount. Raises EC2ClientError where that is fewer than MinCount."""
    vcpus = market.num_vcpus(launch.instance_type)
    by_quota = int(account.vcpus_free(region, launch.instance_type, is_spot=launch.is_spot) // vcpus)
    if by_quota < launch.min_count:
        if launch.is_spot:
            raise EC2ClientError("MaxSpotInstanceCountExceeded", "Max spot instance count exceeded")
        raise EC2ClientError(
            "VcpuLimitExceeded",
            "You have requested more vCPU capacity than your current vCPU limit of "
            f"{account.quota(region, market.quota_code(launch.instance_type, is_spot=False)):.0f} allows for the "
            "instance bucket that the specified instance type belongs to. Please visit "
            "http://aws.amazon.com/contact-us/ec2-request to request an adjustment to this limit.",
        )
    room = account.room(launch.zone, launch.instance_type)
    if room < launch.min_count:
        raise EC2ClientError(
            "InsufficientInstanceCapacity",
            "There is no Spot capacity available that matches your request."
            if launch.is_spot
            else f"We currently do not have sufficient {launch.instance_type} capacity in the Availability Zone you "
            f"requested ({launch.zone}). Our system will be working on provisioning additional capacity.",
        )
    return min(launch.max_count, by_quota, room)


def refuse_unknown_type(instance_type: str) -> None:
    if not market.is_known(instance_type):
        raise EC2ClientError("InvalidParameterValue", f"Invalid value '{instance_type}' for InstanceType.")


def prices_in(points: list[PricePoint], *, start: float, end: float) -> list[PricePoint]:
    """Those within, and of each product the one that was in force at ``start``. Newest first, as they come."""
    found, begun = [], set()
    for point in points:
        if point.at > end or point.product in begun:
            continue
        found.append(point)
        if point.at <= start:
            begun.add(point.product)
    return found


def seconds(moment: datetime | str) -> float:
    parsed = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()


def _check_image(asked: Mapping[str, Any], backend: Any) -> None:
    image_id = asked.get("ImageId", "")
    if not image_id.startswith("ami-"):
        raise EC2ClientError("InvalidAMIID.Malformed", f'Invalid id: "{image_id}" (expecting "ami-...")')
    image = backend.amis.get(image_id)
    if image is None:
        raise EC2ClientError("InvalidAMIID.NotFound", f"The image id '[{image_id}]' does not exist")
    least = image.block_device_mappings[0]["Ebs"]["VolumeSize"]
    for mapping in asked.get("BlockDeviceMappings") or []:
        size = (mapping.get("Ebs") or {}).get("VolumeSize")
        if mapping["DeviceName"] == image.root_device_name and size and size < least:
            raise EC2ClientError(
                "InvalidBlockDeviceMapping",
                f"Volume of size {size}GB is smaller than snapshot '{image.ebs_snapshot.id}', expect size >= {least}GB",
            )


def _check_spot(options: Mapping[str, Any], account: Account, instance_type: str, zone: str) -> None:
    if options.get("SpotInstanceType", "one-time") != "one-time":
        account.unsupported.append("a persistent spot request")
    if options.get("MaxPrice"):
        asked = float(options["MaxPrice"])
        if asked < LOWEST_MAX_PRICE_USD:
            raise EC2ClientError("InvalidParameterValue", f"Invalid value '{asked}' for maxPrice")
        now = next(p for p in account.spot_prices(instance_type, zone, account.now()) if p.product == "Linux/UNIX")
        if asked < now.usd:
            raise EC2ClientError(
                "SpotMaxPriceTooLow",
                f"Your Spot request price of {asked} is lower than the minimum required Spot request fulfillment "
                f"price of {now.usd}.",
            )


def _primary_card(asked: Mapping[str, Any]) -> Mapping[str, Any]:
    cards = asked.get("NetworkInterfaces") or []
    if cards and (asked.get("SubnetId") or asked.get("SecurityGroupIds")):
        raise EC2ClientError(
            "InvalidParameterCombination",
            "Network interfaces and an instance-level subnet ID may not be specified on the same request"
            if asked.get("SubnetId")
            else "Network interfaces and an instance-level security groups may not be specified on the same request",
        )
    return next((card for card in cards if int(card.get("DeviceIndex", 0)) == 0), {})


def _subnet(asked: Mapping[str, Any], card: Mapping[str, Any], backend: Any, region: str, instance_type: str) -> Any:
    subnet_id = card.get("SubnetId") or asked.get("SubnetId")
    if subnet_id:
        return backend.get_subnet(subnet_id)  # raises InvalidSubnetID.NotFound
    zone = (asked.get("Placement") or {}).get("AvailabilityZone")
    if zone is None:
        zone = next(iter(market.zones_with(region, instance_type)), f"{region}a")
    if zone not in [there.name for there in backend.describe_availability_zones()]:
        raise EC2ClientError("InvalidParameterValue", f"Invalid availability zone: [{zone}]")
    subnets = backend.get_default_subnets()
    if zone not in subnets:
        raise EC2ClientError("MissingInput", f"No default subnet for availability zone: '{zone}'.")
    return subnets[zone]


def _tags(asked: Mapping[str, Any], kind: str) -> dict[str, str]:
    return {
        tag["Key"]: tag["Value"]
        for spec in asked.get("TagSpecifications") or asked.get("TagSpecification") or []
        if spec["ResourceType"] == kind
        for tag in spec["Tags"]
    }
