"""Forked workers compute what cold ones do."""

import sys

from tests.cluster import Bamboo

JOB = {"steps": 10, "stages": 2}


def test_forked_and_cold_workers_give_the_same_weights(bamboo: Bamboo) -> None:
    forked = bamboo.run(drill=[{"step": 4, "stage": 1, "action": "1B1"}], **JOB)
    num_nurseries = agents_with_a_nursery(bamboo)
    assert num_nurseries >= 2
    bamboo.environment["BAMBOO_WORKER_COMMAND"] = f"{sys.executable} -m bamboo_trainer"

    cold = bamboo.run(**JOB)

    assert agents_with_a_nursery(bamboo) == num_nurseries
    assert (forked["failovers"], cold["failovers"]) == (1, 0)
    assert forked["weights_sha256"] == cold["weights_sha256"]


def agents_with_a_nursery(bamboo: Bamboo) -> int:
    logs = (bamboo.home / "local-cloud" / "instances").glob("*/agent.log")
    return sum("the nursery has loaded" in log.read_text() for log in logs)
