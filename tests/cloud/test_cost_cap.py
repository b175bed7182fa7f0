"""The suite that costs money asks what it may cost first; on the double, where it costs none."""

from pathlib import Path

import pytest

from tests.aws.double import AwsDouble
from tests.aws.market import on_demand_usd
from tests.cloud import life
from tests.cluster import Bamboo

TYPE = "t3.medium"


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return life.job(tmp_path, url=str(tmp_path / "saved"), types=[TYPE], ssh_from=["203.0.113.7/32"])


def test_what_may_cost_more_than_is_allowed_is_not_rented(aws: AwsDouble, bamboo: Bamboo, job: Path) -> None:
    bamboo.environment = aws.environment
    without_volumes = 3 * on_demand_usd(TYPE) + life.FIS_USD

    with pytest.raises(life.TooDear, match=r"it may cost \$0\.61, and \$0\.60 are allowed"):
        life.live(bamboo, job, max_usd=without_volumes)

    assert aws.lives() == []
    assert aws.remains() == []


def test_a_price_that_nobody_knows_is_too_dear() -> None:
    zone = {"instance_type": TYPE, "spot_usd_per_hour": 0.01, "on_demand_usd_per_hour": 0.01}
    rehearsed = {
        "num_nodes": 2,
        "zones": [zone | {"price_source": "live, on demand: unknown, taken to be that of spot"}],
    }

    with pytest.raises(life.TooDear, match="is not known"):
        life.most_usd(rehearsed)
