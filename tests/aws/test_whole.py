"""The whole product on EC2's double: rent, prepare, train, lose nodes, replace them, pay, give back."""

import json

import pytest

from tests.aws.conftest import Cloud
from tests.aws.product import AwsBamboo

pytestmark = [pytest.mark.vms, pytest.mark.timeout(300)]

NOTICE_S = 60.0
NODES = 4


def test_a_run_on_aws_loses_no_work_to_a_notice_and_to_a_loss_without_one(cloud: Cloud, bamboo: AwsBamboo) -> None:
    job = bamboo.job(nodes=NODES)
    up = bamboo.call("up", job, "--yes")
    assert up.exit_code == 0, f"{up.stderr}\n{bamboo.story()}"
    assert len(bamboo.alive()) == NODES

    bamboo.open_gate()
    undisturbed = bamboo.finish(bamboo.begin("train", job, "--json"))
    assert (undisturbed["failovers"], undisturbed["preemptions"]) == (0, 0), bamboo.story()

    bamboo.close_gate()
    train = bamboo.begin("train", job, "--json")
    bamboo.until(lambda: bamboo.trains(steps=3), "some steps")
    cloud.aws.interrupt(bamboo.instance_of("n2"), notice_s=NOTICE_S)
    bamboo.until(lambda: bamboo.events("notice"), "the notice to be seen on the machine")
    cloud.aws.interrupt(bamboo.instance_of("n3"))
    bamboo.until(lambda: bamboo.states("n2", "n3") == ["ended", "ended"], "two nodes to be over")
    bamboo.until(lambda: sorted(bamboo.states("n5", "n6")) == ["active", "standby"], "both to be replaced")
    bamboo.open_gate()
    disturbed = bamboo.finish(train)

    assert disturbed["weights_sha256"] == undisturbed["weights_sha256"]
    assert disturbed["preemptions"] == 2, bamboo.story()
    assert disturbed["steps_rerun"] == 0, bamboo.story()
    assert len(bamboo.alive()) == NODES

    cost = bamboo.call("cost", "--json")
    assert cost.exit_code == 0, cost.stderr
    bill = json.loads(cost.stdout)
    assert bill["total"]["seconds"] > 0
    assert 0 < bill["total"]["spot_microusd"] < bill["total"]["on_demand_microusd"]
    assert bill["price_sources"] == ["live"]

    down = bamboo.call("down", "--yes")
    assert down.exit_code == 0, down.stderr
    assert cloud.aws.remains() == []
