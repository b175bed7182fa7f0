"""Requests word for word, and what is made of EC2's answers; no cloud of any kind."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import yaml

from bamboo_cli.keys import KeyPair
from bamboo_cli.providers.aws_cloud import listing, requests
from bamboo_cli.providers.aws_cloud.images import TypeFacts, sources_of
from bamboo_cli.providers.aws_cloud.market import prices_of, usd_of
from bamboo_cli.providers.aws_cloud.network import missing_rules, places_of, same_key, spare_rules
from bamboo_cli.providers.base import EndReason, InstanceState, Reach

KEY = KeyPair(private="-----BEGIN-----\nline: 2\n", public="ssh-ed25519 AAAA")
LAUNCH = requests.Launch(
    cluster_id="big-1",
    node_id="n1",
    token="big-1-n1-1",
    zone="us-east-1a",
    instance_type="g5.xlarge",
    is_spot=True,
    max_price_usd_per_hour=None,
    image_id="ami-1",
    root_device="/dev/sda1",
    volume_gb=100,
    subnet_id="subnet-1",
    group_id="sg-1",
    is_public=True,
    host_key=KEY,
)
MARKS = [
    {"Key": "Name", "Value": "bamboo-big-1-n1"},
    {"Key": "bamboo:cluster", "Value": "big-1"},
    {"Key": "bamboo:node", "Value": "n1"},
    {"Key": "bamboo:token", "Value": "big-1-n1-1"},
]
AT = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)


def test_an_instance_is_asked_for_like_this() -> None:
    request = requests.run_instances(LAUNCH)

    assert request == {
        "ClientToken": "big-1-n1-1",
        "MinCount": 1,
        "MaxCount": 1,
        "ImageId": "ami-1",
        "InstanceType": "g5.xlarge",
        "KeyName": "bamboo-big-1",
        "Placement": {"AvailabilityZone": "us-east-1a"},
        "NetworkInterfaces": [
            {
                "DeviceIndex": 0,
                "SubnetId": "subnet-1",
                "Groups": ["sg-1"],
                "AssociatePublicIpAddress": True,
                "DeleteOnTermination": True,
            }
        ],
        "BlockDeviceMappings": [
            {
                "DeviceName": "/dev/sda1",
                "Ebs": {"VolumeSize": 100, "VolumeType": "gp3", "Encrypted": True, "DeleteOnTermination": True},
            }
        ],
        "MetadataOptions": {
            "HttpEndpoint": "enabled",
            "HttpTokens": "required",
            "HttpPutResponseHopLimit": 1,
            "InstanceMetadataTags": "disabled",
        },
        "InstanceInitiatedShutdownBehavior": "terminate",
        "UserData": requests.user_data(KEY),
        "TagSpecifications": [
            {"ResourceType": kind, "Tags": MARKS}
            for kind in ("instance", "volume", "network-interface", "spot-instances-request")
        ],
        "InstanceMarketOptions": {
            "MarketType": "spot",
            "SpotOptions": {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"},
        },
    }
    assert json.loads(json.dumps(request)) == request, "it is stored, and sent again from there"


def test_an_instance_acts_as_its_profile_if_there_is_one() -> None:
    request = requests.run_instances(replace(LAUNCH, instance_profile="bamboo-node"))

    assert request == requests.run_instances(LAUNCH) | {"IamInstanceProfile": {"Name": "bamboo-node"}}


def test_user_data_is_cloud_init_with_the_host_key_and_nothing_that_opens_anything() -> None:
    text = requests.user_data(KEY)

    assert text.startswith("#cloud-config\n") and len(text) < 16_000
    document = yaml.safe_load(text)
    assert document["ssh_keys"] == {"ed25519_private": KEY.private, "ed25519_public": KEY.public}
    assert document["ssh_deletekeys"] is True


OURS = {"Description": "bamboo: SSH of the coordinator"}


def test_rules_of_ours_for_other_addresses_are_taken_back_and_those_of_others_left() -> None:
    one, two = (requests.open_group_to("sg-1", f"203.0.113.{n}/32") for n in (7, 8))
    theirs = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": "198.51.100.0/24"}]}
    group = {"GroupId": "sg-1", "IpPermissions": [*one["IpPermissions"], *two["IpPermissions"], theirs]}

    assert spare_rules(group, ["203.0.113.8/32"]) == [requests.close_group_to("sg-1", "203.0.113.7/32")]
    assert spare_rules(group, ["203.0.113.7/32", "203.0.113.8/32"]) == []


def test_ssh_is_opened_to_a_block_of_either_kind() -> None:
    four, six = requests.open_group_to("sg-1", "203.0.113.7/32"), requests.open_group_to("sg-1", "2001:db8::/64")

    assert four["IpPermissions"] == [
        {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": "203.0.113.7/32", **OURS}]}
    ]
    assert six["IpPermissions"][0]["Ipv6Ranges"] == [{"CidrIpv6": "2001:db8::/64", **OURS}]


def test_only_rules_that_are_missing_are_asked_for() -> None:
    within, one, two = (
        requests.open_group_within("sg-1"),
        requests.open_group_to("sg-1", "203.0.113.7/32"),
        requests.open_group_to("sg-1", "203.0.113.8/32"),
    )
    group = {"GroupId": "sg-1", "IpPermissions": [*within["IpPermissions"], *one["IpPermissions"]]}

    assert missing_rules({"GroupId": "sg-1"}, ["203.0.113.7/32"]) == [within, one]
    assert missing_rules(group, ["203.0.113.7/32", "203.0.113.8/32"]) == [two]


def test_a_zone_has_one_subnet_the_first_that_was_given() -> None:
    subnets = [
        {"SubnetId": f"subnet-{name}", "AvailabilityZone": zone, "AvailabilityZoneId": "use1-az1", "VpcId": "vpc-1"}
        for name, zone in (("a", "us-east-1a"), ("b", "us-east-1b"), ("c", "us-east-1a"))
    ]

    places = places_of("us-east-1", subnets, ["subnet-c", "subnet-b", "subnet-a"])

    assert [(place.zone, place.subnet_id) for place in places] == [
        ("us-east-1a", "subnet-c"),
        ("us-east-1b", "subnet-b"),
    ]


def test_keys_are_the_same_whatever_is_written_behind_them() -> None:
    assert same_key("ssh-ed25519 AAAA bamboo-big-1", "ssh-ed25519 AAAA")
    assert not same_key("ssh-ed25519 BBBB", "ssh-ed25519 AAAA")


@pytest.mark.parametrize(
    ("image", "gpu", "architecture", "first"),
    [
        ("auto", "1 × A10G", "x86_64", "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-24.04"),
        ("auto", "1 × T4G", "arm64", "/aws/service/deeplearning/ami/arm64/base-oss-nvidia-driver-gpu-ubuntu-24.04"),
        ("auto", None, "x86_64", "/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3"),
        ("/my/parameter", None, "x86_64", "/my/parameter"),
    ],
)
def test_an_image_is_looked_for_in_the_parameter_store_first(
    image: str, gpu: str | None, architecture: str, first: str
) -> None:
    facts = TypeFacts(name="t", architecture=architecture, num_vcpus=4, memory_gb=16.0, gpu=gpu)

    sources = sources_of(image, facts)

    assert (sources[0].parameter or "").startswith(first)
    assert len(sources) == (2 if image == "auto" else 1)


# --- answers -----------------------------------------------------------------------------------------------------


def described(**changes: Any) -> dict[str, Any]:
    return {
        "InstanceId": "i-1",
        "InstanceType": "g5.xlarge",
        "InstanceLifecycle": "spot",
        "State": {"Name": "running"},
        "Placement": {"AvailabilityZone": "us-east-1a"},
        "PrivateIpAddress": "172.31.0.4",
        "PublicIpAddress": "198.18.1.1",
        "LaunchTime": AT,
        "Tags": MARKS,
    } | changes


def read(status: listing.SpotStatus | None = None, **changes: Any) -> Any:
    reach = Reach(address="198.18.1.1", host_key="ssh-ed25519 AAAA")
    return listing.instance_of(described(**changes), status, lambda address, token: reach, public=True)


def ended(code: str, status: str | None = None, transition: str = "") -> Any:
    at = (AT + timedelta(hours=1)).timestamp()
    return read(
        None if status is None else listing.SpotStatus(code=status, at=at),
        State={"Name": "terminated"},
        StateReason={"Code": code},
        StateTransitionReason=transition,
    )


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("pending", InstanceState.PENDING),
        ("running", InstanceState.RUNNING),
        ("shutting-down", InstanceState.ENDING),
        ("stopping", InstanceState.ENDING),
        ("stopped", InstanceState.ENDING),
        ("terminated", InstanceState.TERMINATED),
        ("something new", InstanceState.PENDING),
    ],
)
def test_states(name: str, state: InstanceState) -> None:
    assert read(State={"Name": name}).state is state


def test_an_instance_without_an_address_cannot_be_reached_yet() -> None:
    assert read().reach is not None
    assert read(PublicIpAddress=None).reach is None
    assert read(State={"Name": "pending"}).reach is None


def test_one_that_is_marked_is_ending_before_ec2_says_so() -> None:
    marked = listing.SpotStatus(code="marked-for-termination", at=0.0)

    assert read(marked).state is InstanceState.ENDING


@pytest.mark.parametrize(
    ("code", "status", "reason"),
    [
        ("Server.SpotInstanceTermination", None, EndReason.PREEMPTED),
        ("Server.SpotInstanceShutdown", None, EndReason.PREEMPTED),
        ("", "instance-terminated-no-capacity", EndReason.PREEMPTED),
        ("", "instance-terminated-by-price", EndReason.PREEMPTED),
        ("Client.UserInitiatedShutdown", "instance-terminated-by-user", EndReason.USER),
        ("Client.InstanceInitiatedShutdown", "instance-terminated-by-user", EndReason.FAILED),
        ("Server.InternalError", "instance-terminated-by-service", EndReason.FAILED),
        ("Server.InsufficientInstanceCapacity", None, EndReason.FAILED),
        ("Client.VolumeLimitExceeded", None, EndReason.FAILED),
    ],
)
def test_why_an_instance_ended(code: str, status: str | None, reason: EndReason) -> None:
    assert ended(code, status).end_reason is reason


def test_when_an_instance_ended_is_told_by_it_or_by_its_request() -> None:
    told = ended("Client.UserInitiatedShutdown", transition="User initiated (2026-11-30 12:30:00 GMT)")
    by_request = ended("Server.SpotInstanceTermination", "instance-terminated-no-capacity")

    assert told.ended_at == (AT + timedelta(minutes=30)).timestamp()
    assert by_request.ended_at == (AT + timedelta(hours=1)).timestamp()
    assert ended("Server.InternalError").ended_at is None


def test_a_stopped_spot_request_costs_nothing_and_an_open_one_is_left() -> None:
    states = ("open", "active", "closed", "cancelled", "failed")
    asked = [{"SpotInstanceRequestId": f"sir-{state}", "State": state} for state in states]

    assert listing.left_requests("r", asked) == [
        "r: spot request sir-open is open",
        "r: spot request sir-active is active",
    ]


# --- prices ------------------------------------------------------------------------------------------------------


def entry(hours: float, usd: str, zone: str = "us-east-1a", product: str = "Linux/UNIX") -> dict[str, Any]:
    at = AT - timedelta(hours=hours)
    return {
        "AvailabilityZone": zone,
        "InstanceType": "g5.xlarge",
        "ProductDescription": product,
        "SpotPrice": usd,
        "Timestamp": at,
    }


def test_the_newest_entry_is_the_price_in_force_in_whatever_order_they_come() -> None:
    history = [
        entry(5, "0.5"),
        entry(1, "0.4"),
        entry(9, "0.3"),
        entry(0, "0.9", product="Windows"),
        entry(2, "0.1", "z"),
    ]

    (a, z) = prices_of(history)

    assert (a.now_usd_per_hour, a.low_usd_per_hour, a.high_usd_per_hour) == (0.4, 0.3, 0.5)
    assert (z.zone, z.now_usd_per_hour) == ("z", 0.1)
    assert prices_of([]) == ()


def test_of_the_products_the_hourly_price_counts() -> None:
    def product(unit: str, usd: str) -> str:
        return json.dumps(
            {"terms": {"OnDemand": {"x": {"priceDimensions": {"y": {"unit": unit, "pricePerUnit": {"USD": usd}}}}}}}
        )

    assert usd_of([product("Quantity", "5"), product("Hrs", "0.0"), product("Hrs", "1.006")]) == 1.006
    assert usd_of([json.dumps({"terms": {}})]) is None
