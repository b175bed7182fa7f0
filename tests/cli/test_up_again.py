"""``bamboo up`` on a cluster that is up, and what it says of money: nobody takes it for more or cheaper than it is."""

from dataclasses import replace
from pathlib import Path

import pytest

from bamboo_cli import clusters, renting
from bamboo_cli.config import JobConfig
from bamboo_cli.market import MarketZone, settle
from tests.cli.status_example import NOW, cluster

LOCAL = {"name": "tiny", "recipe": "mlp", "steps": 10, "global_batch_size": 8, "microbatch_size": 2, "stages": 2}
AWS = LOCAL | {"cloud": "aws", "checkpoint": {"url": "s3://bucket"}, "aws": {"types": ["g5.xlarge"]}}
ZONE = MarketZone(
    name="us-east-1a",
    instance_type="g5.xlarge",
    spot_usd_per_hour=0.4,
    on_demand_usd_per_hour=1.0,
    price_source="live",
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BAMBOO_HOME", str(tmp_path))


def job(wanted: dict[str, object]) -> JobConfig:
    return JobConfig.model_validate(wanted)


@pytest.mark.parametrize(
    ("made", "asked", "told"),
    [
        (LOCAL, LOCAL, ""),
        (LOCAL, LOCAL | {"steps": 20}, ""),  # `bamboo train` takes that from the job
        (LOCAL, LOCAL | {"nodes": 6}, "(6 nodes)"),
        (AWS, AWS, ""),  # though the zones are settled on when it is made
        (AWS, AWS | {"aws": {"types": ["g6.xlarge"]}}, "(`aws`)"),
        (LOCAL, AWS, "(`cloud`, `aws`)"),
    ],
)
def test_what_another_job_says_of_nodes_is_not_passed_over_in_silence(
    made: dict[str, object], asked: dict[str, object], told: str
) -> None:
    clusters.open_or_create(settle(job(made), (ZONE,)), "", "tiny")

    said = renting.otherwise(job(asked), "tiny")

    assert bool(said) == bool(told)
    if told:
        assert said.startswith("cluster tiny is up already with 2 nodes")
        assert told in said and "after `bamboo down`" in said


def test_that_it_goes_on_costing_is_said_where_it_costs_anything() -> None:
    dear = replace(cluster(), microusd_per_hour=1_640_000)

    assert renting.costing(dear, NOW) == ", which cost $1.64 an hour until they are given back"
    assert renting.costing(replace(dear, microusd_per_hour=0), NOW) == ""
    idle = replace(dear, gives_back_at=NOW + 7000)
    assert renting.costing(idle, NOW).endswith(
        " until they are given back, which happens by itself after 1 h 56 min without a run"
    )
