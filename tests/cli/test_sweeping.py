"""Giving a cluster of AWS back without its coordinator: by tag, with what goes wrong told and nothing forgotten."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from bamboo_cli import clusters, keys, sweeping
from bamboo_cli.errors import CredentialsError, LeftBehindError, NotPermittedError
from bamboo_cli.providers.aws import AwsProvider
from bamboo_cli.providers.aws_cloud import launches
from bamboo_cli.providers.aws_cloud.known import AwsSettings
from bamboo_cli.teardown import bring_down, sweep_by_id
from tests.aws.account import Credentials
from tests.aws.double import AwsDouble
from tests.providers.contract import node_config

CLUSTER = "big-0a1b2c"
SETTINGS = AwsSettings(regions=("us-east-1",), types=("g5.xlarge",), ssh_from=("203.0.113.7/32",))


@pytest.fixture(autouse=True)
def environment(aws_here: AwsDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AwsProvider, "poll_s", 0.02)
    monkeypatch.setattr(AwsProvider, "ends_within_s", 30.0)
    monkeypatch.setattr(sweeping, "POLL_S", 0.01)


@pytest.fixture
def cluster_dir(tmp_path: Path) -> Path:
    """Two nodes are rented; the state file is damaged, so no coordinator can be had."""
    folder = tmp_path / "clusters" / "big"
    provider = AwsProvider(folder, SETTINGS)
    offer = provider.offers()[0]
    for number in (1, 2):
        provider.create(offer, node_config(f"n{number}", CLUSTER), f"{CLUSTER}-n{number}-1")
    identity = clusters.Identity(cluster_id=CLUSTER, cloud="aws", regions=("us-east-1",))
    (folder / clusters.IDENTITY_FILE).write_text(json.dumps(asdict(identity)))
    (folder / "state.db").write_text("not a database at all, but long enough to be taken for one" * 20)
    return folder


def test_a_damaged_state_file_is_no_reason_to_pay_on(aws: AwsDouble, cluster_dir: Path) -> None:
    down = bring_down(cluster_dir)

    assert (down.by, down.detail) == ("sweep", "2 instances ended")
    assert aws.remains() == []
    assert not (cluster_dir / keys.FOLDER).exists() and not (cluster_dir / launches.FOLDER).exists()


def test_what_takes_its_time_to_end_is_waited_for(aws: AwsDouble, cluster_dir: Path) -> None:
    aws.account.shutting_down_s = 0.5
    bring_down(cluster_dir)

    assert aws.remains() == []


def test_with_credentials_that_have_run_out_nothing_is_done_and_the_record_stays(
    aws: AwsDouble, cluster_dir: Path
) -> None:
    aws.account.credentials = Credentials.EXPIRED
    before = sorted(path.name for path in cluster_dir.rglob("*"))

    with pytest.raises(CredentialsError, match="was ended, and it may go on costing money") as raised:
        bring_down(cluster_dir)

    assert str(cluster_dir) in raised.value.next_step
    assert sorted(path.name for path in cluster_dir.rglob("*")) == before
    aws.account.credentials = Credentials.GOOD
    bring_down(cluster_dir)
    assert aws.remains() == []


def test_without_the_permission_to_terminate_what_is_left_is_listed_with_why(aws: AwsDouble, cluster_dir: Path) -> None:
    aws.account.allowed = ("ec2:Describe*", "ec2:Delete*", "ec2:Cancel*")

    with pytest.raises(LeftBehindError) as raised:
        bring_down(cluster_dir)

    text = raised.value.message
    assert "does not permit ec2:TerminateInstances" in text
    assert text.count("instance i-") == 2 and "security group" in text
    assert (cluster_dir / keys.FOLDER).exists()


def test_without_the_permission_to_delete_groups_all_else_is_ended(aws: AwsDouble, cluster_dir: Path) -> None:
    aws.account.allowed = ("ec2:Describe*", "ec2:TerminateInstances", "ec2:DeleteKeyPair", "ec2:Cancel*")

    with pytest.raises(LeftBehindError, match=r"1 thing .* is still there") as raised:
        bring_down(cluster_dir)

    assert "security group" in raised.value.message and "ec2:DeleteSecurityGroup" in raised.value.message
    assert not aws.alive()


def test_throttling_is_sat_out(aws: AwsDouble, cluster_dir: Path) -> None:
    aws.fault("TerminateInstances", "RequestLimitExceeded", times=6)

    bring_down(cluster_dir)

    assert aws.remains() == []


def test_an_api_that_never_answers_properly_ends_the_wait_with_what_is_left(aws: AwsDouble, cluster_dir: Path) -> None:
    aws.fault("TerminateInstances", "OperationNotPermitted", times=None)

    with pytest.raises(LeftBehindError, match="OperationNotPermitted"):
        bring_down(cluster_dir)


def test_a_cluster_whose_record_is_lost_is_found_by_its_id_in_every_region(aws: AwsDouble, tmp_path: Path) -> None:
    for number, region in enumerate(("us-east-1", "eu-west-1"), 1):
        provider = AwsProvider(tmp_path / "lost", AwsSettings(regions=(region,), types=("g5.xlarge",), ssh_from=()))
        provider.create(provider.offers()[0], node_config(f"n{number}", CLUSTER), f"t{number}")

    down = sweep_by_id(CLUSTER, None)

    assert down.detail == "2 instances ended"
    assert aws.remains() == []


def test_all_regions_need_the_permission_to_list_them(aws: AwsDouble) -> None:
    aws.account.allowed = ("ec2:DescribeInstances",)
    with pytest.raises(NotPermittedError, match="ec2:DescribeRegions"):
        sweep_by_id(CLUSTER, None)
