"""What of a cluster is left in a region, asked past Bamboo."""

from typing import Any

ENDED = ("shutting-down", "terminated")


def left(ec2: Any, cluster_id: str) -> list[str]:
    """``ec2``: a client of boto3. One line each; empty: nothing."""
    marked = [{"Name": "tag:bamboo:cluster", "Values": [cluster_id]}]
    instances = [
        instance
        for reservation in ec2.describe_instances(Filters=marked)["Reservations"]
        for instance in reservation["Instances"]
    ]
    requests = ec2.describe_spot_instance_requests(Filters=marked)["SpotInstanceRequests"]
    return [
        *(i["InstanceId"] for i in instances if i["State"]["Name"] not in ENDED),
        *(r["SpotInstanceRequestId"] for r in requests if r["State"] in ("open", "active")),
        *(v["VolumeId"] for v in ec2.describe_volumes(Filters=marked)["Volumes"]),
        *(n["NetworkInterfaceId"] for n in ec2.describe_network_interfaces(Filters=marked)["NetworkInterfaces"]),
        *(g["GroupId"] for g in ec2.describe_security_groups(Filters=marked)["SecurityGroups"]),
        *(k["KeyName"] for k in ec2.describe_key_pairs(Filters=marked)["KeyPairs"]),
    ]
