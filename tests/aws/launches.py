"""Requests as tests send them to the double."""

from typing import Any

from tests.aws.account import DLAMI

SPOT = {"MarketType": "spot", "SpotOptions": {"SpotInstanceType": "one-time"}}


def run(ec2: Any, **changes: Any) -> list[dict[str, Any]]:
    """RunInstances of one spot instance, with these parameters instead (None: without it); the instances."""
    asked = {
        "ImageId": DLAMI,
        "InstanceType": "g5.xlarge",
        "MinCount": 1,
        "MaxCount": 1,
        "InstanceMarketOptions": SPOT,
        "InstanceInitiatedShutdownBehavior": "terminate",
        "MetadataOptions": {"HttpTokens": "required"},
    }
    wanted = {name: value for name, value in (asked | changes).items() if value is not None}
    found: list[dict[str, Any]] = ec2.run_instances(**wanted)["Instances"]
    return found


def run_one(ec2: Any, **changes: Any) -> str:
    """Its id."""
    return str(run(ec2, **changes)[0]["InstanceId"])


def described(ec2: Any, instance_id: str) -> dict[str, Any]:
    found: dict[str, Any] = ec2.describe_instances(InstanceIds=[instance_id])["Reservations"][0]["Instances"][0]
    return found


def state(ec2: Any, instance_id: str) -> str:
    return str(described(ec2, instance_id)["State"]["Name"])
