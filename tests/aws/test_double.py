"""The double is EC2 where moto is not: each correction, as boto3 sees it."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.aws.account import DLAMI, Credentials
from tests.aws.double import AwsDouble
from tests.aws.launches import SPOT, described, run, run_one, state

G_SPOT = "L-3819A6DF"


@pytest.fixture
def ec2(aws: AwsDouble) -> Any:
    return aws.client()


def refused(code: str, status: int = 400) -> Any:
    """What is raised is this error of AWS, with this HTTP status."""
    return pytest.raises(ClientError, check=lambda e: _code(e) == code and _status(e) == status)


def _code(error: ClientError) -> str:
    return str(error.response["Error"]["Code"])


def _status(error: ClientError) -> int:
    return int(error.response["ResponseMetadata"]["HTTPStatusCode"])


# --- RunInstances ---


def test_a_client_token_gives_the_same_instance_again(ec2: Any) -> None:
    first = run_one(ec2, ClientToken="t1")
    assert run_one(ec2, ClientToken="t1") == first
    assert run_one(ec2, ClientToken="t2") != first
    assert len(ec2.describe_instances()["Reservations"]) == 2


def test_a_client_token_is_kept_per_region_and_when_its_instance_has_ended(aws: AwsDouble, ec2: Any) -> None:
    first = run_one(ec2, ClientToken="t1")
    ec2.terminate_instances(InstanceIds=[first])
    assert run_one(ec2, ClientToken="t1") == first
    assert run_one(aws.client(region="us-west-2"), ClientToken="t1") != first


def test_a_client_token_with_other_arguments_is_refused(ec2: Any) -> None:
    run_one(ec2, ClientToken="t1")
    with refused("IdempotentParameterMismatch"):
        run_one(ec2, ClientToken="t1", InstanceType="g6.xlarge")


def test_a_refused_launch_leaves_its_token_free(aws: AwsDouble, ec2: Any) -> None:
    aws.account.capacity[("us-east-1a", "g5.xlarge")] = 0
    placement = {"AvailabilityZone": "us-east-1a"}
    with refused("InsufficientInstanceCapacity", 500):
        run(ec2, ClientToken="t1", Placement=placement)
    del aws.account.capacity[("us-east-1a", "g5.xlarge")]
    assert run_one(ec2, ClientToken="t1", Placement=placement)


def test_as_many_are_launched_as_there_are(aws: AwsDouble, ec2: Any) -> None:
    placement = {"AvailabilityZone": "us-east-1b"}
    aws.account.capacity[("us-east-1b", "g5.xlarge")] = 3
    assert len(run(ec2, MinCount=1, MaxCount=2, Placement=placement)) == 2
    assert len(run(ec2, MinCount=1, MaxCount=4, Placement=placement)) == 1
    with refused("InsufficientInstanceCapacity", 500):
        run(ec2, Placement=placement)


def test_what_ended_makes_room(aws: AwsDouble, ec2: Any) -> None:
    aws.account.capacity[("us-east-1b", "*")] = 1
    placement = {"AvailabilityZone": "us-east-1b"}
    ec2.terminate_instances(InstanceIds=[run_one(ec2, Placement=placement)])
    assert run_one(ec2, Placement=placement)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"ImageId": "ami-0123456789abcdef0"}, "InvalidAMIID.NotFound"),
        ({"ImageId": "ubuntu"}, "InvalidAMIID.Malformed"),
        ({"InstanceType": "g5.tiny"}, "InvalidParameterValue"),
        ({"KeyName": "nobody"}, "InvalidKeyPair.NotFound"),
        ({"SubnetId": "subnet-0123456789abcdef0"}, "InvalidSubnetID.NotFound"),
        ({"SecurityGroupIds": ["sg-0123456789abcdef0"]}, "InvalidGroup.NotFound"),
        ({"Placement": {"AvailabilityZone": "us-east-1z"}}, "InvalidParameterValue"),
        ({"Placement": {"AvailabilityZone": "us-east-1e"}}, "Unsupported"),
        ({"InstanceMarketOptions": {"MarketType": "spot", "SpotOptions": {"MaxPrice": "0.01"}}}, "SpotMaxPriceTooLow"),
        ({"UserData": "x" * 20000}, "InvalidParameterValue"),
        ({"MinCount": 2}, "InvalidParameterValue"),
        ({"IamInstanceProfile": {"Name": "nobody"}}, "InvalidParameterValue"),
        (
            {"BlockDeviceMappings": [{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 8}}]},
            "InvalidBlockDeviceMapping",
        ),
        ({"DryRun": True, "ImageId": "ami-0123456789abcdef0"}, "InvalidAMIID.NotFound"),
    ],
)
def test_bad_arguments_are_refused(aws: AwsDouble, ec2: Any, changes: dict[str, Any], code: str) -> None:
    with refused(code):
        run(ec2, **changes)
    assert not aws.remains()


def test_quotas_count_vcpus_and_are_told_by_their_code(aws: AwsDouble, ec2: Any) -> None:
    aws.account.quotas[("us-east-1", G_SPOT)] = 8.0
    run(ec2, MinCount=1, MaxCount=2)
    with refused("MaxSpotInstanceCountExceeded"):
        run(ec2)
    assert run(ec2, InstanceMarketOptions=None), "on demand has a quota of its own"
    aws.account.quotas[("us-east-1", "L-DB2E81BA")] = 4.0
    with refused("VcpuLimitExceeded"):
        run(ec2, InstanceMarketOptions=None)
    quota = aws.client("service-quotas").get_service_quota(ServiceCode="ec2", QuotaCode=G_SPOT)["Quota"]
    assert (quota["QuotaName"], quota["Value"]) == ("All G and VT Spot Instance Requests", 8.0)


def test_tags_are_on_all_that_is_made_from_the_start(ec2: Any) -> None:
    kinds = ("instance", "volume", "network-interface", "spot-instances-request")
    tags = [{"Key": "bamboo:cluster", "Value": "c1"}]
    instance_id = run_one(ec2, TagSpecifications=[{"ResourceType": kind, "Tags": tags} for kind in kinds])
    by_tag = [{"Name": "tag:bamboo:cluster", "Values": ["c1"]}]
    assert described(ec2, instance_id)["Tags"] == tags
    assert len(ec2.describe_volumes(Filters=by_tag)["Volumes"]) == 1
    assert len(ec2.describe_network_interfaces(Filters=by_tag)["NetworkInterfaces"]) == 1
    (request,) = ec2.describe_spot_instance_requests(Filters=by_tag)["SpotInstanceRequests"]
    assert request["InstanceId"] == instance_id


def test_metadata_options_and_card_are_those_that_were_asked_for(ec2: Any) -> None:
    subnet = ec2.describe_subnets(Filters=[{"Name": "availability-zone", "Values": ["us-east-1b"]}])["Subnets"][0]
    group = ec2.create_security_group(GroupName="g", Description="g")["GroupId"]
    card = {
        "DeviceIndex": 0,
        "SubnetId": subnet["SubnetId"],
        "Groups": [group],
        "AssociatePublicIpAddress": False,
        "DeleteOnTermination": True,
    }
    found = described(ec2, run_one(ec2, NetworkInterfaces=[card]))
    assert found["MetadataOptions"]["HttpTokens"] == "required"
    assert [g["GroupId"] for g in found["SecurityGroups"]] == [group]
    assert found["Placement"]["AvailabilityZone"] == "us-east-1b"
    assert "PublicIpAddress" not in found
    assert found["NetworkInterfaces"][0]["Attachment"]["DeleteOnTermination"]


# --- lives ---


def test_an_instance_is_pending_first(aws: AwsDouble, ec2: Any) -> None:
    aws.account.pending_s = 20.0
    instance_id = run_one(ec2)
    assert state(ec2, instance_id) == "pending"
    aws.pass_time(21.0)
    assert state(ec2, instance_id) == "running"


def test_a_new_instance_may_be_unknown_for_a_while(aws: AwsDouble, ec2: Any) -> None:
    aws.account.visible_after_s = 5.0
    instance_id = run_one(ec2)
    with refused("InvalidInstanceID.NotFound"):
        ec2.describe_instances(InstanceIds=[instance_id])
    with refused("InvalidInstanceID.NotFound"):
        ec2.create_tags(Resources=[instance_id], Tags=[{"Key": "a", "Value": "b"}])
    assert ec2.describe_instances()["Reservations"] == []
    aws.pass_time(6.0)
    assert state(ec2, instance_id) == "running"


def test_a_terminated_instance_is_shutting_down_then_terminated_then_forgotten(aws: AwsDouble, ec2: Any) -> None:
    aws.account.shutting_down_s = 30.0
    instance_id = run_one(ec2)
    ec2.describe_instances()
    (change,) = ec2.terminate_instances(InstanceIds=[instance_id])["TerminatingInstances"]
    assert (change["PreviousState"]["Name"], change["CurrentState"]["Name"]) == ("running", "shutting-down")
    assert state(ec2, instance_id) == "shutting-down"
    ec2.terminate_instances(InstanceIds=[instance_id])
    aws.pass_time(31.0)
    assert state(ec2, instance_id) == "terminated"
    assert described(ec2, instance_id)["StateReason"]["Code"] == "Client.UserInitiatedShutdown"
    assert described(ec2, instance_id)["StateTransitionReason"].startswith("User initiated (20")
    aws.pass_time(3601.0)
    assert ec2.describe_instances()["Reservations"] == []
    with refused("InvalidInstanceID.NotFound"):
        ec2.describe_instances(InstanceIds=[instance_id])


def test_one_unknown_id_in_a_list_terminates_none(ec2: Any) -> None:
    instance_id = run_one(ec2)
    with refused("InvalidInstanceID.NotFound"):
        ec2.terminate_instances(InstanceIds=[instance_id, "i-0123456789abcdef0"])
    assert state(ec2, instance_id) == "running"


def test_volumes_and_cards_go_with_their_instance(aws: AwsDouble, ec2: Any) -> None:
    mapping = {"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 100, "DeleteOnTermination": True, "Encrypted": True}}
    instance_id = run_one(ec2, BlockDeviceMappings=[mapping])
    assert len(aws.remains()) == 4, "instance, volume, card, spot request"
    ec2.terminate_instances(InstanceIds=[instance_id])
    assert not aws.remains()


def test_an_interruption_ends_as_ec2_tells_it(aws: AwsDouble, ec2: Any) -> None:
    instance_id = run_one(ec2)
    aws.interrupt(instance_id, notice_s=120.0)
    assert state(ec2, instance_id) == "running"
    (request,) = ec2.describe_spot_instance_requests()["SpotInstanceRequests"]
    assert request["Status"]["Code"] == "marked-for-termination"
    aws.pass_time(121.0)
    found = described(ec2, instance_id)
    assert found["State"]["Name"] == "terminated"
    assert found["StateReason"]["Code"] == "Server.SpotInstanceTermination"


# --- spot requests ---


def test_a_spot_instance_has_a_request_that_ends_with_it(ec2: Any) -> None:
    instance_id = run_one(ec2)
    request_id = described(ec2, instance_id)["SpotInstanceRequestId"]
    by_id = {"SpotInstanceRequestIds": [request_id]}
    (request,) = ec2.describe_spot_instance_requests(**by_id)["SpotInstanceRequests"]
    assert (request["State"], request["Type"], request["InstanceId"]) == ("active", "one-time", instance_id)
    ec2.terminate_instances(InstanceIds=[instance_id])
    (request,) = ec2.describe_spot_instance_requests(**by_id)["SpotInstanceRequests"]
    assert (request["State"], request["Status"]["Code"]) == ("closed", "instance-terminated-by-user")


def test_a_cancelled_request_stays_visible_and_its_instance_lives(ec2: Any) -> None:
    instance_id = run_one(ec2)
    request_id = described(ec2, instance_id)["SpotInstanceRequestId"]
    ec2.cancel_spot_instance_requests(SpotInstanceRequestIds=[request_id])
    (request,) = ec2.describe_spot_instance_requests()["SpotInstanceRequests"]
    assert (request["State"], request["Status"]["Code"]) == ("cancelled", "request-canceled-and-instance-running")
    assert state(ec2, instance_id) == "running"
    with refused("InvalidSpotInstanceRequestID.NotFound"):
        ec2.cancel_spot_instance_requests(SpotInstanceRequestIds=["sir-unknown"])


def test_a_one_time_spot_instance_cannot_be_stopped(ec2: Any) -> None:
    instance_id = run_one(ec2)
    with refused("UnsupportedOperation"):
        ec2.stop_instances(InstanceIds=[instance_id])


def test_an_on_demand_instance_has_no_spot_request(ec2: Any) -> None:
    found = described(ec2, run_one(ec2, InstanceMarketOptions=None))
    assert "SpotInstanceRequestId" not in found
    assert "InstanceLifecycle" not in found


@pytest.mark.parametrize("name", ["client-token", "instance-lifecycle", "spot-instance-request-id"])
def test_instances_are_found_by_more_filters(ec2: Any, name: str) -> None:
    wanted = described(ec2, run_one(ec2, ClientToken="t1"))
    run_one(ec2, ClientToken="t2", InstanceMarketOptions=None)
    value = {
        "client-token": "t1",
        "instance-lifecycle": "spot",
        "spot-instance-request-id": wanted["SpotInstanceRequestId"],
    }[name]
    found = ec2.describe_instances(Filters=[{"Name": name, "Values": [value]}])["Reservations"]
    assert [i["InstanceId"] for r in found for i in r["Instances"]] == [wanted["InstanceId"]]


# --- groups ---


def test_a_group_in_use_cannot_be_deleted(aws: AwsDouble, ec2: Any) -> None:
    aws.account.shutting_down_s = 30.0
    group = ec2.create_security_group(GroupName="g", Description="g")["GroupId"]
    other = ec2.create_security_group(GroupName="h", Description="h")["GroupId"]
    pair = {"UserIdGroupPairs": [{"GroupId": group}], "IpProtocol": "-1"}
    ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[pair])
    ec2.authorize_security_group_ingress(GroupId=other, IpPermissions=[pair])
    instance_id = run_one(ec2, SecurityGroupIds=[group])
    ec2.terminate_instances(InstanceIds=[instance_id])
    with refused("DependencyViolation"):
        ec2.delete_security_group(GroupId=group)
    aws.pass_time(31.0)
    with refused("DependencyViolation"):
        ec2.delete_security_group(GroupId=group)
    ec2.delete_security_group(GroupId=other)
    ec2.delete_security_group(GroupId=group)
    assert not aws.remains()


# --- the market ---


def test_spot_prices_go_back_days_differ_by_zone_and_come_in_pages(ec2: Any) -> None:
    now = datetime.now(UTC)
    asked = {
        "InstanceTypes": ["g5.xlarge"],
        "ProductDescriptions": ["Linux/UNIX"],
        "StartTime": now - timedelta(days=7),
        "MaxResults": 50,
    }
    first = ec2.describe_spot_price_history(**asked)
    assert len(first["SpotPriceHistory"]) == 50
    pages = list(ec2.get_paginator("describe_spot_price_history").paginate(**asked))
    points = [point for page in pages for point in page["SpotPriceHistory"]]
    assert len(pages) > 2
    assert {point["ProductDescription"] for point in points} == {"Linux/UNIX"}
    assert len({point["AvailabilityZone"] for point in points}) == 5
    assert len({point["SpotPrice"] for point in points}) > 100
    assert now - timedelta(days=7, hours=6) <= min(point["Timestamp"] for point in points)


def test_without_a_start_only_the_prices_of_now_are_told(ec2: Any) -> None:
    asked = {"InstanceTypes": ["g5.xlarge"], "ProductDescriptions": ["Linux/UNIX"], "AvailabilityZone": "us-east-1b"}
    assert len(ec2.describe_spot_price_history(**asked)["SpotPriceHistory"]) == 1
    everything = ec2.describe_spot_price_history(InstanceTypes=["g5.xlarge"])["SpotPriceHistory"]
    assert {point["ProductDescription"] for point in everything} == {"Linux/UNIX", "Windows"}


def test_placement_scores_are_by_zone_id(aws: AwsDouble, ec2: Any) -> None:
    aws.account.placement_scores["us-east-1b"] = 2
    asked = {"InstanceTypes": ["g5.xlarge"], "TargetCapacity": 4, "SingleAvailabilityZone": True}
    scores = ec2.get_spot_placement_scores(**asked)["SpotPlacementScores"]
    zone_ids = {z["ZoneName"]: z["ZoneId"] for z in ec2.describe_availability_zones()["AvailabilityZones"]}
    assert (scores[-1]["AvailabilityZoneId"], scores[-1]["Score"]) == (zone_ids["us-east-1b"], 2)


def test_on_demand_prices_are_among_others_that_look_like_them(aws: AwsDouble) -> None:
    pricing = aws.client("pricing")
    by_type = [{"Type": "TERM_MATCH", "Field": f, "Value": v} for f, v in _PLAIN.items()]
    assert len(pricing.get_products(ServiceCode="AmazonEC2", Filters=by_type)["PriceList"]) == 1
    assert len(pricing.get_products(ServiceCode="AmazonEC2", Filters=by_type[:2])["PriceList"]) == 4


_PLAIN = {
    "instanceType": "g5.xlarge",
    "regionCode": "us-east-1",
    "operatingSystem": "Linux",
    "capacitystatus": "Used",
    "tenancy": "Shared",
    "preInstalledSw": "NA",
}


def test_the_deep_learning_image_is_found_by_parameter_and_by_name(aws: AwsDouble, ec2: Any) -> None:
    name = "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id"
    by_parameter = aws.client("ssm").get_parameter(Name=name)["Parameter"]["Value"]
    named = [{"Name": "name", "Values": ["Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 24.04) *"]}]
    images = ec2.describe_images(Owners=["amazon"], Filters=named)["Images"]
    assert max(images, key=lambda image: image["CreationDate"])["ImageId"] == by_parameter
    del aws.account.image_parameters[name]
    with refused("ParameterNotFound"):
        aws.client("ssm").get_parameter(Name=name)


def test_the_image_says_how_big_its_root_has_to_be(ec2: Any) -> None:
    (image,) = ec2.describe_images(ImageIds=[DLAMI])["Images"]
    assert image["BlockDeviceMappings"][0]["Ebs"]["VolumeSize"] == 75


def test_an_interruption_can_be_ordered_from_the_fault_injection_service(aws: AwsDouble, ec2: Any) -> None:
    instance_id = run_one(ec2)
    fis = aws.client("fis")
    template = fis.create_experiment_template(
        clientToken="e1",
        description="take it",
        roleArn="arn:aws:iam::123456789012:role/fis",
        stopConditions=[{"source": "none"}],
        targets={
            "victim": {
                "resourceType": "aws:ec2:spot-instance",
                "resourceArns": [f"arn:aws:ec2:us-east-1:123456789012:instance/{instance_id}"],
                "selectionMode": "ALL",
            }
        },
        actions={
            "take": {
                "actionId": "aws:ec2:send-spot-instance-interruptions",
                "parameters": {"durationBeforeInterruption": "PT2M"},
                "targets": {"SpotInstances": "victim"},
            }
        },
    )["experimentTemplate"]["id"]
    fis.start_experiment(clientToken="s1", experimentTemplateId=template)
    fis.delete_experiment_template(id=template)
    assert state(ec2, instance_id) == "running"
    aws.pass_time(121.0)
    assert state(ec2, instance_id) == "terminated"
    with refused("ResourceNotFoundException"):
        fis.start_experiment(clientToken="s2", experimentTemplateId=template)


# --- permissions ---


def test_a_dry_run_succeeds_by_failing(ec2: Any) -> None:
    with refused("DryRunOperation", 412):
        run(ec2, DryRun=True)
    with refused("DryRunOperation", 412):
        ec2.describe_spot_price_history(DryRun=True)
    assert ec2.describe_instances()["Reservations"] == []


def test_what_the_policy_lacks_is_refused_and_named(aws: AwsDouble, ec2: Any) -> None:
    aws.account.allowed = ("ec2:Describe*", "ec2:RunInstances")
    tags = [{"ResourceType": "instance", "Tags": [{"Key": "a", "Value": "b"}]}]
    with refused("UnauthorizedOperation", 403) as raised:
        ec2.create_security_group(GroupName="g", Description="g", DryRun=True)
    assert "not authorized to perform: ec2:CreateSecurityGroup" in str(raised.value)
    with refused("UnauthorizedOperation", 403) as raised:
        run(ec2, TagSpecifications=tags)
    assert "ec2:CreateTags" in str(raised.value)
    with refused("AccessDeniedException"):
        aws.client("service-quotas").list_service_quotas(ServiceCode="ec2")
    assert run(ec2)
    assert aws.client("sts").get_caller_identity()["Account"] == "123456789012"


@pytest.mark.parametrize(
    ("credentials", "codes"),
    [
        (Credentials.EXPIRED, ("RequestExpired", "ExpiredToken", "ExpiredTokenException")),
        (Credentials.WRONG, ("AuthFailure", "InvalidClientTokenId", "UnrecognizedClientException")),
    ],
)
def test_bad_credentials_have_a_code_in_each_service(
    aws: AwsDouble, credentials: Credentials, codes: tuple[str, ...]
) -> None:
    aws.account.credentials = credentials
    found = []
    for call in (
        aws.client("ec2").describe_instances,
        aws.client("sts").get_caller_identity,
        lambda: aws.client("pricing").get_products(ServiceCode="AmazonEC2"),
    ):
        with pytest.raises(ClientError) as raised:
            call()
        found.append(_code(raised.value))
    assert tuple(found) == codes


def test_regions_are_apart(aws: AwsDouble, ec2: Any) -> None:
    run_one(aws.client(region="us-west-2"), InstanceMarketOptions=SPOT)
    assert ec2.describe_instances()["Reservations"] == []
    assert any(line.startswith("us-west-2: instance") for line in aws.remains())
