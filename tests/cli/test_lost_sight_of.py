"""What costs money is found and ended though its tag, its record, its region or the command itself is in trouble."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bamboo_cli import clusters
from bamboo_cli.coordinator import journal, store
from bamboo_cli.coordinator.entities import Cluster
from bamboo_cli.coordinator.rows import encode_row
from bamboo_cli.errors import LeftBehindError, StateError, UsageError
from bamboo_cli.main import app
from bamboo_cli.providers.base import InstanceState
from bamboo_cli.teardown import bring_down, end_what_is_left, sweep_by_id
from tests.aws.double import AwsDouble
from tests.cli.rented import BOTH, CLUSTER, folder, quick_environment, rented

__all__ = ["folder", "quick_environment"]


def close_the_books(folder: Path) -> None:
    """The coordinator has seen all nodes end."""
    store.create_cluster(folder, name="big", cloud="aws", job_text="", job={}, wanted_nodes=1)
    engine = store.open_for_writing(store.state_path(folder))
    with store.writing(engine) as connection:
        journal.put_row(connection, "cluster", encode_row("cluster", Cluster(closing=True, closed=True)))
    engine.dispose()


def untag(aws: AwsDouble, resource: str, *keys: str) -> None:
    aws.client().delete_tags(Resources=[resource], Tags=[{"Key": key} for key in keys])


# --- tags ---


@pytest.mark.parametrize("keys", [("bamboo:cluster",), ("bamboo:cluster", "bamboo:node", "bamboo:token", "Name")])
def test_an_instance_whose_tags_were_taken_off_by_hand_is_still_its_node_and_ended(
    aws: AwsDouble, folder: Path, keys: tuple[str, ...]
) -> None:
    """Its key pair and its client token say whose it is; nobody can take these from it."""
    provider = rented(folder, "us-east-1")
    (life,) = aws.alive()
    untag(aws, life.instance_id, *keys)

    (instance,) = provider.instances(CLUSTER)
    assert (instance.node_id, instance.cluster_id, instance.token) == ("n1", CLUSTER, f"{CLUSTER}-n1-1")
    assert any(life.instance_id in line for line in provider.left_behind(CLUSTER))

    bring_down(folder)
    assert aws.remains() == []


def test_a_key_pair_and_a_group_without_tags_are_ended_too(aws: AwsDouble, folder: Path) -> None:
    rented(folder, "us-east-1")
    ec2 = aws.client()
    (pair,) = ec2.describe_key_pairs()["KeyPairs"]
    (group,) = (g for g in ec2.describe_security_groups()["SecurityGroups"] if g["GroupName"] != "default")
    untag(aws, pair["KeyPairId"], "bamboo:cluster")
    untag(aws, group["GroupId"], "bamboo:cluster")

    bring_down(folder)
    assert aws.remains() == []


def test_another_cluster_of_the_same_name_on_another_machine_is_left_alone(aws: AwsDouble, tmp_path: Path) -> None:
    mine, theirs = (tmp_path / machine / "clusters" / "big" for machine in ("mine", "theirs"))
    rented(mine, "us-east-1")
    other = rented(theirs, "us-east-1", cluster_id="big-9f8e7d")

    bring_down(mine)

    assert [instance.state for instance in other.instances("big-9f8e7d")] == [InstanceState.RUNNING]
    assert all("big-9f8e7d" in line for line in aws.remains() if "group" in line or "key pair" in line)


@pytest.mark.parametrize("cluster_id", ["*", "big-*", "big-0a1b2?", "", "big"])
def test_what_would_end_other_clusters_is_no_id(aws: AwsDouble, folder: Path, cluster_id: str) -> None:
    rented(folder, "us-east-1")

    with pytest.raises(UsageError, match="cannot be the id of a cluster"):
        sweep_by_id(cluster_id, None)

    assert len(aws.alive()) == 1


# --- records ---


def test_without_a_state_file_the_identity_beside_it_is_enough_in_all_regions(aws: AwsDouble, folder: Path) -> None:
    rented(folder, *BOTH)
    identity = clusters.Identity(cluster_id=CLUSTER, cloud="aws", regions=("us-east-1",))
    (folder / clusters.IDENTITY_FILE).write_text(json.dumps(asdict(identity)))

    result = CliRunner().invoke(app, ["down", "--yes", "--all-regions", "--json"])

    assert result.exit_code == 0, result.exception
    assert json.loads(result.stdout)["detail"] == "2 instances ended"
    assert aws.remains() == []


def test_the_next_cluster_of_that_name_does_not_take_the_place_of_what_is_still_rented(
    aws: AwsDouble, folder: Path, tmp_path: Path
) -> None:
    from bamboo_cli.job_file import load_job
    from tests.cli.aws_job import JOB

    rented(folder, "us-east-1")
    (tmp_path / "job.yaml").write_text(JOB)

    with pytest.raises(StateError, match="the state file of cluster big is gone") as raised:
        clusters.open_or_create(load_job(tmp_path / "job.yaml"), JOB, "big")

    assert "bamboo down --cluster big" in raised.value.next_step


def test_what_a_cluster_left_that_closed_itself_is_ended_before_the_next_one_takes_its_name(
    aws: AwsDouble, folder: Path
) -> None:
    provider = rented(folder, "us-east-1")
    (instance,) = provider.instances(CLUSTER)
    provider.terminate((instance.instance_id,))
    end_what_is_left(folder)
    assert aws.remains() != [], "one whose books are open is somebody's"
    close_the_books(folder)

    end_what_is_left(folder)

    assert aws.remains() == []
    end_what_is_left(folder)


def test_an_instance_that_comes_to_light_when_the_books_are_closed_is_ended(aws: AwsDouble, folder: Path) -> None:
    rented(folder, "us-east-1")
    close_the_books(folder)

    down = bring_down(folder)

    assert down.by == "coordinator"
    assert down.detail == "it was down already; 1 instance that nobody knew of ended too"
    assert aws.remains() == []


# --- regions ---


def test_a_region_in_trouble_keeps_nobody_from_ending_what_is_in_the_others(aws: AwsDouble, folder: Path) -> None:
    rented(folder, *BOTH)
    trouble = aws.fault("*", "UnsupportedOperation", times=None, when=lambda call: call.region == "us-west-2")

    with pytest.raises(LeftBehindError) as raised:
        bring_down(folder)

    assert [life.region for life in aws.alive()] == ["us-west-2"]
    assert "us-west-2: instances cannot be listed" in raised.value.message
    assert not any(line.startswith("us-east-1") for line in aws.remains())
    trouble.lift()
    bring_down(folder)
    assert aws.remains() == []


def test_a_region_that_was_never_enabled_is_no_reason_to_leave_things_in_another(aws: AwsDouble, folder: Path) -> None:
    rented(folder, "us-east-1")
    identity = clusters.Identity(cluster_id=CLUSTER, cloud="aws", regions=("us-east-1", "me-south-1"))
    (folder / clusters.IDENTITY_FILE).write_text(json.dumps(asdict(identity)))
    aws.account.not_enabled = ("me-south-1",)

    bring_down(folder)

    assert aws.remains() == []


def test_a_region_that_was_disabled_with_instances_in_it_is_named(aws: AwsDouble, folder: Path) -> None:
    """They go on, and cost money."""
    rented(folder, *BOTH)
    aws.account.not_enabled = ("us-west-2",)

    with pytest.raises(LeftBehindError, match="us-west-2 is not enabled for this account"):
        bring_down(folder)

    assert [life.region for life in aws.alive()] == ["us-west-2"]
