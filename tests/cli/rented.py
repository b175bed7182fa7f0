"""A cluster on EC2's double of which no state file is left, and quick ways to end it."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from bamboo_cli import clusters, sweeping
from bamboo_cli.providers import aws as aws_module
from bamboo_cli.providers.aws import AwsProvider
from bamboo_cli.providers.aws_cloud.calls import Calls
from bamboo_cli.providers.aws_cloud.known import AwsSettings
from tests.aws.double import AwsDouble
from tests.providers.contract import node_config

CLUSTER = "big-0a1b2c"
SETTINGS = AwsSettings(regions=("us-east-1",), types=("g5.xlarge",), ssh_from=("203.0.113.7/32",))
BOTH = ("us-east-1", "us-west-2")


@pytest.fixture(autouse=True)
def quick_environment(aws_here: AwsDouble, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BAMBOO_HOME", str(tmp_path))
    monkeypatch.setattr(AwsProvider, "poll_s", 0.02)
    monkeypatch.setattr(AwsProvider, "ends_within_s", 30.0)
    monkeypatch.setattr(sweeping, "POLL_S", 0.01)
    shared = Calls()
    monkeypatch.setattr(shared, "_forget_credentials", lambda: None)
    monkeypatch.setattr(aws_module, "Calls", lambda profile: shared)  # clients take longer to make than to use


def rented(folder: Path, *regions: str, cluster_id: str = CLUSTER) -> AwsProvider:
    """A node in each region, and no state file: as after it was deleted."""
    provider = AwsProvider(folder, replace(SETTINGS, regions=regions))
    for number, region in enumerate(regions, 1):
        offer = next(offer for offer in provider.offers() if offer.zone.startswith(region))
        provider.create(offer, node_config(f"n{number}", cluster_id), f"{cluster_id}-n{number}-1")
    identity = clusters.Identity(cluster_id=cluster_id, cloud="aws", regions=regions)
    (folder / clusters.IDENTITY_FILE).write_text(json.dumps(asdict(identity)))
    return provider


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "clusters" / "big"
