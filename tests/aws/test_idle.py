"""A cluster on which nothing runs gives its instances back of its own accord; the next one of its name tidies up."""

import pytest

from tests.aws.conftest import Cloud
from tests.aws.product import NODES, AwsBamboo

pytestmark = [pytest.mark.vms, pytest.mark.usefixtures("nothing_boots"), pytest.mark.timeout(600)]

IDLE_MIN = 0.2


def test_instances_of_an_idle_cluster_are_ended_and_the_next_up_leaves_nothing_of_it(
    cloud: Cloud, bamboo: AwsBamboo
) -> None:
    # given a cluster whose nodes nobody uses
    up = bamboo.begin_up(on={"idle_after_min": IDLE_MIN})
    bamboo.until_connecting()
    assert len(cloud.aws.alive()) == NODES
    first = bamboo.status().cluster_id

    # when so much time has passed
    ended = up.end()

    # then there are none, no coordinator rents others, and `up` says why
    assert cloud.aws.alive() == [], bamboo.story()
    bamboo.until(lambda: not bamboo.has_coordinator(), "the coordinator to end")
    assert ended.exit_code == 1 and "was taken down meanwhile" in ended.stderr, ended.stderr
    assert any("nothing has run for 0.2 min: all nodes are given back" in e.text for e in bamboo.events())
    assert any(first in line for line in cloud.aws.remains()), "its group and its key are still there"

    bamboo.begin_up()
    bamboo.until(lambda: len(cloud.aws.alive()) == NODES, "another cluster")
    bamboo.until_connecting()

    assert bamboo.status().cluster_id != first
    assert not any(first in line for line in cloud.aws.remains())
    bamboo.goes_down()
