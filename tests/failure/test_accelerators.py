"""Nodes with two accelerators, each with a worker of its own process: a node goes with both of them."""

from collections.abc import Callable
from typing import Any

import psutil
from bamboo_trainer.plan import node_id_of

from tests.cluster import JOB, PLAIN, Bamboo
from tests.failure.test_kills import assert_nothing_was_lost

SHAPE: dict[str, Any] = {"pipelines": 2, "stages": 2}
PAIRS = JOB["local"] | {"accelerators": 2}
WITHOUT_REPLACEMENT = PAIRS | {"replace": False}


def test_a_node_with_a_stage_of_each_pipeline_is_killed_in_mid_step(
    bamboo: Bamboo, undisturbed: Callable[..., str]
) -> None:
    """Given three nodes, one with two stages and two with one and a standby, when the first of them vanishes."""
    kill = {"step": 5, "pipeline": 0, "stage": 0, "action": "0B1"}

    summary = bamboo.run(drill=[kill], nodes=3, local=WITHOUT_REPLACEMENT, **SHAPE)

    first = bamboo.plans()[0]
    victim = node_id_of(first.stage(0, 0).host)
    taken = [stage.place for stage in first.stages() if node_id_of(stage.host) == victim]
    assert taken == [(0, 0), (1, 1)]
    (failover,) = bamboo.events("failover")[:1]
    assert failover.text.startswith(f"lost {victim}/1, {victim}/2: ")
    assert_nothing_was_lost(bamboo, summary, num_losses=1)
    assert summary["weights_sha256"] == undisturbed(**SHAPE)


def test_on_two_nodes_the_one_that_is_left_runs_everything_until_there_is_another(
    bamboo: Bamboo, undisturbed: Callable[..., str]
) -> None:
    """Given as few nodes as have room, each with a stage of both pipelines: one failover for both of its workers."""
    kill = {"step": 6, "pipeline": 0, "stage": 0, "action": "0F1"}

    summary = bamboo.run(drill=[kill], local=PAIRS, **SHAPE)

    first, failover = bamboo.plans()[:2]
    hosts = [stage.host for stage in first.stages()]
    assert len(set(hosts)) == 4 and {node_id_of(host) for host in hosts} == {"n1", "n2"}
    assert {node_id_of(stage.host) for stage in failover.stages()} < {"n1", "n2"}
    assert len({stage.host for stage in failover.stages()}) == 2, "each worker that is left runs two stages"
    assert_nothing_was_lost(bamboo, summary, num_losses=1)
    assert summary["weights_sha256"] == undisturbed(**SHAPE)


def test_a_worker_that_is_killed_is_replaced_on_its_accelerator_while_the_other_one_trains_on(
    bamboo: Bamboo, undisturbed: Callable[..., str]
) -> None:
    command = bamboo.begin("run", bamboo.paced(local=PAIRS, **SHAPE), "--yes", "--json")
    bamboo.until(lambda: bamboo.committed_steps() > 3, "the run to be on its way")
    (victim,) = [p for p in bamboo.processes() if _worker_id(p) == "n1/2"]
    victim.kill()
    bamboo.until(lambda: _workers(bamboo) == ["n1/1", "n1/3", "n2/1", "n2/2"], "another worker in its place")
    at = bamboo.committed_steps()
    bamboo.until(lambda: bamboo.committed_steps() > at + 2, "training to go on")
    (node,) = [node for node in bamboo.status().nodes if node.node_id == "n1"]
    bamboo.open_gate()
    summary = bamboo.finish(command)

    assert [(worker.worker_id, worker.accelerator) for worker in node.workers] == [("n1/1", 0), ("n1/3", 1)]
    assert (summary["preemptions"], summary["restores"], summary["steps_rerun"]) == (0, 0, 0), bamboo.story()
    assert all(event.text.startswith("worker n1/2 is lost") for event in bamboo.events("loss"))
    assert summary["weights_sha256"] == undisturbed(**PLAIN, **SHAPE)


def _worker_id(process: psutil.Process) -> str:
    try:
        return process.environ().get("BAMBOO_WORKER_ID", "")
    except psutil.Error:
        return ""


def _workers(bamboo: Bamboo) -> list[str]:
    return sorted(worker.worker_id for node in bamboo.status().nodes for worker in node.workers)
