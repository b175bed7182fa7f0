"""The provider for EC2 against its double: what is asked, what is stored before, and what goes wrong in between."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bamboo_cli import keys
from bamboo_cli.errors import (
    CapacityError,
    CloudError,
    CredentialsError,
    InstanceGoneError,
    NotPermittedError,
    QuotaError,
    RequestRefusedError,
)
from bamboo_cli.providers.aws import AwsProvider
from bamboo_cli.providers.aws_cloud import launches, pace
from bamboo_cli.providers.aws_cloud.known import AwsSettings
from bamboo_cli.providers.base import EndReason, Instance, InstanceState, Offer, Provider
from tests.aws.account import DLAMI, UBUNTU, Credentials
from tests.aws.double import AwsDouble
from tests.providers.contract import CLUSTER, ProviderContract, found, node_config, wait_for

SETTINGS = AwsSettings(regions=("us-east-1",), types=("g5.xlarge", "g6.xlarge"), ssh_from=("203.0.113.7/32",))


pytestmark = pytest.mark.usefixtures("aws_here")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cluster"


@pytest.fixture
def provider(folder: Path) -> AwsProvider:
    return AwsProvider(folder, SETTINGS)


def in_zone(provider: AwsProvider, zone: str, instance_type: str = "g5.xlarge", *, spot: bool = True) -> Offer:
    return next(o for o in provider.offers() if (o.zone, o.instance_type, o.is_spot) == (zone, instance_type, spot))


@pytest.fixture
def offer(provider: AwsProvider) -> Offer:
    return in_zone(provider, "us-east-1a")


class TestContract(ProviderContract):
    grain_s = 1.0

    @pytest.fixture
    def full_offer(self, aws: AwsDouble, provider: AwsProvider) -> Offer:
        aws.account.capacity[("us-east-1c", "g5.xlarge")] = 0
        return in_zone(provider, "us-east-1c")

    @pytest.fixture
    def preempt(self, aws: AwsDouble, provider: Provider) -> Callable[[str, float | None], None]:
        return aws.interrupt


# --- what is launched --------------------------------------------------------------------------------------------


def described(aws: AwsDouble, instance: Instance) -> Any:
    region = instance.zone[:-1]
    answer = aws.client(region=region).describe_instances(InstanceIds=[instance.instance_id])
    return answer["Reservations"][0]["Instances"][0]


def test_an_instance_is_launched_as_a_careful_engineer_would(
    aws: AwsDouble, provider: AwsProvider, offer: Offer, folder: Path
) -> None:
    made = provider.create(offer, node_config(), "c-1-n1-1")

    instance = described(aws, made)
    ec2 = aws.client()
    assert instance["InstanceLifecycle"] == "spot"
    assert instance["MetadataOptions"]["HttpTokens"] == "required"
    assert instance["MetadataOptions"]["HttpPutResponseHopLimit"] == 1
    assert (instance["ImageId"], instance["KeyName"]) == (DLAMI, f"bamboo-{CLUSTER}")
    shutdown = ec2.describe_instance_attribute(
        InstanceId=made.instance_id, Attribute="instanceInitiatedShutdownBehavior"
    )
    assert shutdown["InstanceInitiatedShutdownBehavior"]["Value"] == "terminate"
    (volume,) = ec2.describe_volumes()["Volumes"]
    assert (volume["Encrypted"], volume["Size"]) == (True, 100)
    assert instance["BlockDeviceMappings"][0]["Ebs"]["DeleteOnTermination"]
    (group,) = ec2.describe_security_groups(GroupIds=[instance["NetworkInterfaces"][0]["Groups"][0]["GroupId"]])[
        "SecurityGroups"
    ]
    rules = [
        (
            rule.get("FromPort"),
            [r["CidrIp"] for r in rule["IpRanges"]],
            [p["GroupId"] for p in rule["UserIdGroupPairs"]],
        )
        for rule in group["IpPermissions"]
    ]
    assert sorted(rules, key=str) == [(22, ["203.0.113.7/32"], []), (None, [], [group["GroupId"]])] or sorted(
        rules, key=str
    ) == [(22, ["203.0.113.7/32"], []), (-1, [], [group["GroupId"]])]
    for tagged in (instance, volume, group, *ec2.describe_spot_instance_requests()["SpotInstanceRequests"]):
        assert {"Key": "bamboo:cluster", "Value": CLUSTER} in tagged["Tags"]


def test_the_clusters_secret_is_not_in_the_user_data_and_the_host_key_is(
    aws: AwsDouble, provider: AwsProvider, offer: Offer, folder: Path
) -> None:
    provider.create(offer, node_config(), "t1")

    (launch,) = aws.called("RunInstances")
    stored = launches.load(folder, "t1")
    assert stored is not None
    key = keys.known_host_key(folder, "t1")
    assert key is not None and key.public in stored.request["UserData"]
    assert "s3cret" not in str(launch.parameters) and "s3cret" not in str(stored)


def test_a_running_instance_says_how_to_reach_it(
    aws: AwsDouble, provider: AwsProvider, offer: Offer, folder: Path
) -> None:
    running = wait_for(provider, provider.create(offer, node_config(), "t1"), InstanceState.RUNNING)

    key = keys.known_host_key(folder, "t1")
    assert running.reach is not None and key is not None
    assert running.reach.host_key == key.public
    assert (running.reach.address, running.reach.user, running.reach.port) == (
        described(aws, running)["PublicIpAddress"],
        "ubuntu",
        22,
    )
    assert running.address == described(aws, running)["PrivateIpAddress"]
    elsewhere = AwsProvider(folder.parent / "another", SETTINGS)
    assert found(elsewhere, running).reach is None, "without its host key it cannot be known for sure"


def test_through_a_bastion_an_instance_has_no_public_address(aws: AwsDouble, folder: Path) -> None:
    provider = AwsProvider(folder, replace(SETTINGS, bastion="me@bastion.example", ssh_from=("10.0.0.4/32",)))
    running = wait_for(
        provider, provider.create(in_zone(provider, "us-east-1a"), node_config(), "t1"), InstanceState.RUNNING
    )

    assert "PublicIpAddress" not in described(aws, running)
    assert running.reach is not None
    assert (running.reach.address, running.reach.bastion) == (running.address, "me@bastion.example")


def test_on_demand_is_bought_without_a_market(aws: AwsDouble, folder: Path) -> None:
    provider = AwsProvider(folder, replace(SETTINGS, on_demand_fallback=True))
    offers = provider.offers()
    assert [offer.is_spot for offer in offers] == sorted((offer.is_spot for offer in offers), reverse=True)

    made = provider.create(in_zone(provider, "us-east-1a", spot=False), node_config(), "t1")

    assert not found(provider, made).is_spot
    assert "InstanceLifecycle" not in described(aws, made)


def test_types_come_in_the_order_of_the_job_and_zones_by_price(provider: AwsProvider) -> None:
    offers = provider.offers()

    types = [offer.instance_type for offer in offers]
    assert types == sorted(types, key=SETTINGS.types.index)
    first = [offer.spot_usd_per_hour for offer in offers if offer.instance_type == "g5.xlarge"]
    assert first == sorted(first) and len(first) > 2


def test_every_page_of_the_price_history_is_read_and_the_newest_price_counts(
    aws: AwsDouble, provider: AwsProvider
) -> None:
    offers = provider.offers()

    for offer in offers:
        newest = next(
            point
            for point in aws.account.spot_prices(offer.instance_type, offer.zone, aws.account.now())
            if point.product == "Linux/UNIX"
        )
        assert offer.spot_usd_per_hour == pytest.approx(newest.usd)
    assert {(offer.instance_type, offer.on_demand_usd_per_hour) for offer in offers} == {
        ("g5.xlarge", 1.006),
        ("g6.xlarge", 0.8048),
    }
    assert {offer.price_source for offer in offers} == {"live"}


def test_without_the_pricing_api_the_catalogue_is_asked_and_named(aws: AwsDouble, provider: AwsProvider) -> None:
    aws.account.allowed = ("ec2:*",)

    (source,) = {offer.price_source for offer in provider.offers()}

    assert source.startswith("live, on demand: an estimate of 20")


def test_64_nodes_that_come_together_make_one_group_and_one_key(
    aws: AwsDouble, provider: AwsProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    aws.account.quotas[("us-east-1", "L-3819A6DF")] = 1000.0
    aws.account.launch_burst = 64
    monkeypatch.setattr(pace, "BURST", 64)
    offer = in_zone(provider, "us-east-1a")
    together = threading.Barrier(64)
    made: list[Instance] = []

    def create(number: int) -> None:
        together.wait(30)
        made.append(provider.create(offer, node_config(f"n{number}"), f"t{number}"))

    threads = [threading.Thread(target=create, args=(number,)) for number in range(1, 65)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len({instance.instance_id for instance in made}) == 64 == len(provider.instances(CLUSTER))
    assert (len(aws.called("CreateSecurityGroup")), len(aws.called("ImportKeyPair"))) == (1, 1)


# --- tokens ------------------------------------------------------------------------------------------------------


def test_an_answer_that_is_lost_is_found_by_the_same_token(aws: AwsDouble, provider: AwsProvider, offer: Offer) -> None:
    aws.fault("RunInstances", drop=True, after=True)
    with pytest.raises(CloudError):
        provider.create(offer, node_config(), "t1")

    made = provider.create(offer, node_config(), "t1")

    assert [life.instance_id for life in aws.lives()] == [made.instance_id]


def test_a_repeated_request_is_the_first_to_the_last_byte(aws: AwsDouble, folder: Path, offer: Offer) -> None:
    """Also where tags show nothing yet, and what the request depends on has changed meanwhile."""
    aws.account.visible_after_s = 60.0
    aws.fault("RunInstances", "InternalError", after=True)
    with pytest.raises(CloudError):
        AwsProvider(folder, SETTINGS).create(offer, node_config(), "t1")
    aws.account.image_parameters.clear()
    again = AwsProvider(folder, replace(SETTINGS, volume_gb=500, image="ami-0d1a000000000001"))

    made = again.create(offer, node_config(), "t1")

    first, second = (call.parameters for call in aws.called("RunInstances"))
    assert first == second
    assert [life.instance_id for life in aws.lives()] == [made.instance_id]


def test_credentials_that_run_out_after_a_lost_answer_do_not_make_a_second_instance(
    aws: AwsDouble, provider: AwsProvider, offer: Offer
) -> None:
    """What came of the first request is not known, so it is this one that is asked again, not another."""
    aws.fault("RunInstances", drop=True, after=True)
    with pytest.raises(CloudError):
        provider.create(offer, node_config(), "t1")
    aws.account.credentials = Credentials.EXPIRED

    with pytest.raises(CloudError, match="not known what came of an earlier request") as raised:
        provider.create(offer, node_config(), "t1")
    assert not isinstance(raised.value, CredentialsError), "which would be taken for a no, and another token tried"

    aws.account.credentials = Credentials.GOOD
    made = provider.create(offer, node_config(), "t1")
    assert [life.instance_id for life in aws.lives()] == [made.instance_id]


def test_a_permission_that_is_taken_away_after_a_lost_answer_does_not_either(
    aws: AwsDouble, provider: AwsProvider, offer: Offer
) -> None:
    """Also where EC2 does not list the instance yet."""
    aws.account.visible_after_s = 60.0
    aws.fault("RunInstances", drop=True, after=True)
    with pytest.raises(CloudError):
        provider.create(offer, node_config(), "t1")
    allowed, aws.account.allowed = aws.account.allowed, ("ec2:Describe*",)
    with pytest.raises(CloudError, match="not known what came of an earlier request"):
        provider.create(offer, node_config(), "t1")
    aws.account.allowed = allowed

    made = provider.create(offer, node_config(), "t1")
    assert [life.instance_id for life in aws.lives()] == [made.instance_id]


def test_the_request_is_on_disk_before_it_is_sent_and_its_owners_alone(
    aws: AwsDouble, provider: AwsProvider, offer: Offer, folder: Path
) -> None:
    held = aws.fault("RunInstances", gate=threading.Event())
    creating = threading.Thread(target=provider.create, args=(offer, node_config(), "t1"))
    creating.start()
    assert held.met.wait(10)

    stored = launches.load(folder, "t1")
    assert stored is not None and stored.request["ClientToken"] == "t1"
    assert (folder / "launches" / "t1.json").stat().st_mode & 0o777 == 0o600
    held.lift()
    creating.join()


def test_a_refused_request_is_forgotten_so_that_the_next_is_made_anew(
    aws: AwsDouble, provider: AwsProvider, offer: Offer, folder: Path
) -> None:
    aws.account.capacity[("us-east-1a", "g5.xlarge")] = 0
    with pytest.raises(CapacityError):
        provider.create(offer, node_config(), "t1")

    assert launches.load(folder, "t1") is None


def test_a_lack_of_capacity_is_asked_for_once(aws: AwsDouble, provider: AwsProvider, offer: Offer) -> None:
    """The SDK would take EC2's 500 for a reason to send again."""
    aws.account.capacity[("us-east-1a", "g5.xlarge")] = 0
    with pytest.raises(CapacityError):
        provider.create(offer, node_config(), "t1")

    assert len(aws.called("RunInstances")) == 1


# --- what EC2 says -----------------------------------------------------------------------------------------------


def test_a_quota_is_told_by_name_code_and_value_with_how_to_raise_it(
    aws: AwsDouble, provider: AwsProvider, offer: Offer
) -> None:
    aws.account.quotas[("us-east-1", "L-3819A6DF")] = 4.0
    provider.create(offer, node_config("n1"), "t1")
    with pytest.raises(QuotaError) as raised:
        provider.create(offer, node_config("n2"), "t2")

    assert "All G and VT Spot Instance Requests (L-3819A6DF), 4 vCPUs" in raised.value.message
    assert "request-service-quota-increase" in raised.value.next_step and "us-east-1" in raised.value.next_step


def test_a_missing_permission_is_named(aws: AwsDouble, provider: AwsProvider, offer: Offer) -> None:
    aws.account.allowed = ("ec2:Describe*", "ec2:*Key*", "ec2:*SecurityGroup*", "ec2:CreateTags", "ssm:*")
    with pytest.raises(NotPermittedError, match="does not permit ec2:RunInstances") as raised:
        provider.create(offer, node_config(), "t1")
    assert "ec2:CreateTags" in raised.value.next_step


@pytest.mark.parametrize("trouble", [Credentials.EXPIRED, Credentials.WRONG])
def test_credentials_that_are_refused_say_so(aws: AwsDouble, provider: AwsProvider, trouble: Credentials) -> None:
    aws.account.credentials = trouble
    with pytest.raises(CredentialsError) as raised:
        provider.instances(CLUSTER)
    assert "aws sso login" in raised.value.next_step or "clock" in raised.value.next_step

    aws.account.credentials = Credentials.GOOD
    assert provider.instances(CLUSTER) == ()


def test_no_credentials_at_all_say_so(provider: AwsProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(CredentialsError, match="no AWS credentials"):
        provider.instances(CLUSTER)


def test_a_profile_that_is_not_there_is_named(folder: Path) -> None:
    with pytest.raises(CredentialsError, match="nobody"):
        AwsProvider(folder, replace(SETTINGS, profile="nobody")).instances(CLUSTER)


def test_what_is_throttled_for_a_moment_is_asked_again(aws: AwsDouble, provider: AwsProvider) -> None:
    aws.fault("DescribeInstances", "RequestLimitExceeded", times=2)
    assert provider.instances(CLUSTER) == ()
    assert len(aws.called("DescribeInstances")) == 2 + 2, "by tag, by key pair, and the two that were refused"


def test_an_image_that_is_not_there_is_refused_with_what_was_looked_for(folder: Path, aws: AwsDouble) -> None:
    provider = AwsProvider(folder, replace(SETTINGS, image="my-image-*"))
    with pytest.raises(RequestRefusedError, match="an image named my-image-"):
        provider.create(in_zone(provider, "us-east-1a"), node_config(), "t1")
    assert not aws.alive()


def test_without_the_parameter_store_the_newest_image_by_name_is_taken(aws: AwsDouble, provider: AwsProvider) -> None:
    aws.account.allowed = ("ec2:*",)
    assert provider.known.image("us-east-1", "g5.xlarge").image_id == DLAMI
    assert provider.known.image("us-east-1", "c7i.large").image_id == UBUNTU


def test_a_type_without_a_gpu_gets_plain_ubuntu(provider: AwsProvider) -> None:
    assert provider.known.image("us-east-1", "c7i.large").name.startswith("ubuntu/images/")


def test_a_root_volume_is_never_smaller_than_its_image(aws: AwsDouble, folder: Path) -> None:
    provider = AwsProvider(folder, replace(SETTINGS, volume_gb=8))
    provider.create(in_zone(provider, "us-east-1a"), node_config(), "t1")
    (volume,) = aws.client().describe_volumes()["Volumes"]
    assert volume["Size"] >= 8


# --- how instances end -------------------------------------------------------------------------------------------


def test_a_new_instance_that_is_not_known_yet_is_not_listed_and_not_an_error(
    aws: AwsDouble, provider: AwsProvider, offer: Offer
) -> None:
    aws.account.visible_after_s = 60.0
    made = provider.create(offer, node_config(), "t1")

    assert provider.instances(CLUSTER) == ()
    provider.terminate((made.instance_id,))
    aws.pass_time(61.0)
    assert found(provider, made).state in (InstanceState.RUNNING, InstanceState.TERMINATED)


def test_an_instance_that_shuts_itself_down_ended_by_itself(
    aws: AwsDouble, provider: AwsProvider, offer: Offer
) -> None:
    from tests.aws import lives
    from tests.aws.account import End

    made = provider.create(offer, node_config(), "t1")
    with aws._settled():
        lives.end(aws.account, aws._backends()["us-east-1"], aws.account.lives[made.instance_id], End.SHUTDOWN)

    ended = found(provider, made)
    assert (ended.state, ended.end_reason) == (InstanceState.TERMINATED, EndReason.FAILED)
    assert ended.ended_at is not None and found(provider, made) == ended


def test_an_interruption_is_known_by_its_spot_request_before_it_takes_effect(
    aws: AwsDouble, provider: AwsProvider, offer: Offer
) -> None:
    made = provider.create(offer, node_config(), "t1")
    aws.interrupt(made.instance_id, 120.0)

    assert found(provider, made).state is InstanceState.ENDING


def test_an_unknown_instance_does_not_save_the_others(aws: AwsDouble, provider: AwsProvider, offer: Offer) -> None:
    made = [provider.create(offer, node_config(f"n{n}"), f"t{n}") for n in (1, 2)]
    provider.terminate((made[0].instance_id, "i-0123456789abcdef0", made[1].instance_id))

    assert not aws.alive()


def test_a_preemption_on_purpose_is_announced_and_leaves_no_experiment(
    aws: AwsDouble, folder: Path, offer: Offer
) -> None:
    provider = AwsProvider(folder, replace(SETTINGS, fault_injection_role="arn:aws:iam::123456789012:role/fis"))
    made = provider.create(offer, node_config(), "t1")

    provider.preempt(made.instance_id, notice_s=120.0)

    assert found(provider, made).state is InstanceState.ENDING
    assert len(aws.called("DeleteExperimentTemplate")) == 1


def test_a_preemption_on_purpose_without_a_role_says_what_is_missing(
    aws: AwsDouble, provider: AwsProvider, offer: Offer
) -> None:
    made = provider.create(offer, node_config(), "t1")
    with pytest.raises(NotPermittedError) as raised:
        provider.preempt(made.instance_id, notice_s=120.0)
    assert "aws.fault_injection_role" in raised.value.next_step
    provider.preempt(made.instance_id, notice_s=None)
    assert not aws.alive()
    with pytest.raises(InstanceGoneError):
        provider.preempt(made.instance_id, notice_s=120.0)


# --- nothing is left ---------------------------------------------------------------------------------------------


def test_clusters_whose_names_share_a_beginning_do_not_touch_each_other(
    aws: AwsDouble, provider: AwsProvider, offer: Offer, tmp_path: Path
) -> None:
    longer = f"{CLUSTER}0"
    other = AwsProvider(tmp_path / "other", SETTINGS)
    made = provider.create(offer, node_config(), "t1")
    kept = other.create(offer, node_config(cluster_id=longer), "t2")

    provider.terminate((made.instance_id,))
    wait_for(provider, made, InstanceState.TERMINATED)
    provider.clean(CLUSTER)

    assert provider.left_behind(CLUSTER) == ()
    assert [life.instance_id for life in aws.alive()] == [kept.instance_id]
    left = " ".join(other.left_behind(longer))
    assert kept.instance_id in left and "security group" in left and "key pair" in left


def test_everything_is_ended_in_every_region(aws: AwsDouble, folder: Path) -> None:
    provider = AwsProvider(folder, replace(SETTINGS, regions=("us-east-1", "us-west-2")))
    made = [
        provider.create(in_zone(provider, zone), node_config(f"n{number}"), f"t{number}")
        for number, zone in enumerate(("us-east-1a", "us-west-2a"), 1)
    ]
    assert {instance.zone for instance in provider.instances(CLUSTER)} == {"us-east-1a", "us-west-2a"}

    provider.terminate(tuple(instance.instance_id for instance in made))
    provider.clean(CLUSTER)

    assert provider.left_behind(CLUSTER) == ()
    assert aws.remains() == []


def test_a_region_that_was_never_asked_is_not_looked_at_and_its_trouble_none_of_ours(
    aws: AwsDouble, folder: Path
) -> None:
    provider = AwsProvider(folder, replace(SETTINGS, regions=("us-east-1", "us-west-2")))
    made = provider.create(in_zone(provider, "us-east-1a"), node_config(), "t1")
    aws.fault("*", "InternalError", times=None, when=lambda call: call.region == "us-west-2")
    provider.known.forget()

    assert found(provider, made).instance_id == made.instance_id
    assert {offer.zone[:-1] for offer in provider.offers()} == {"us-east-1"}


def test_what_may_not_be_listed_is_not_taken_for_gone(aws: AwsDouble, provider: AwsProvider, offer: Offer) -> None:
    provider.terminate((provider.create(offer, node_config(), "t1").instance_id,))
    provider.clean(CLUSTER)
    aws.account.allowed = ("ec2:DescribeI*", "ec2:DescribeS*", "ec2:DescribeN*", "ec2:DescribeK*")

    (line,) = provider.left_behind(CLUSTER)

    assert "volumes cannot be listed" in line and "ec2:DescribeVolumes" in line


def test_cleaning_goes_on_after_what_is_refused_and_says_what_it_was(
    aws: AwsDouble, provider: AwsProvider, offer: Offer
) -> None:
    provider.terminate((provider.create(offer, node_config(), "t1").instance_id,))
    aws.account.allowed = ("ec2:Describe*", "ec2:DeleteKeyPair")

    with pytest.raises(NotPermittedError, match="ec2:DeleteSecurityGroup"):
        provider.clean(CLUSTER)

    (left,) = provider.left_behind(CLUSTER)
    assert "security group" in left


def test_a_group_that_is_still_in_use_is_for_the_next_try(aws: AwsDouble, provider: AwsProvider, offer: Offer) -> None:
    aws.account.shutting_down_s = 60.0
    provider.terminate((provider.create(offer, node_config(), "t1").instance_id,))
    provider.clean(CLUSTER)
    assert any("security group" in line for line in provider.left_behind(CLUSTER))

    aws.pass_time(61.0)
    provider.clean(CLUSTER)
    assert provider.left_behind(CLUSTER) == ()


def test_a_key_of_a_lost_folder_is_replaced(
    aws: AwsDouble, provider: AwsProvider, offer: Offer, tmp_path: Path
) -> None:
    provider.create(offer, node_config(), "t1")
    another = AwsProvider(tmp_path / "another", SETTINGS)
    another.create(offer, node_config("n2"), "t2")

    (pair,) = aws.client().describe_key_pairs(IncludePublicKey=True)["KeyPairs"]
    assert pair["PublicKey"].split()[:2] == keys.client_key(tmp_path / "another").public.split()[:2]
