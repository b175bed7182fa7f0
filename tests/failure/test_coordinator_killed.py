"""The coordinator is killed again and again; the training does not notice, and nobody is rented or given back."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from bamboo_cli.config import JobConfig
from bamboo_cli.coordinator import lock
from bamboo_cli.coordinator.states import NodeState
from bamboo_cli.jobs import local_config
from bamboo_cli.providers.base import InstanceState
from bamboo_cli.providers.local import LocalProvider
from tests.cluster import DEADLINE_S, JOB, PLAIN, Bamboo
from tests.tracking.seen import seen_in

NUM_KILLS = 10
NUM_EARLY_KILLS = 3
NODES = ["n1", "n2", "n3"]
SEED = 20


@pytest.mark.timeout(600)
def test_ten_deaths_of_the_coordinator_cost_nothing(bamboo: Bamboo, undisturbed: Callable[..., str]) -> None:
    chosen = random.Random(SEED)
    job = bamboo.paced()
    bamboo.begin("up", job, "--yes")
    for _ in range(NUM_EARLY_KILLS):  # while the nodes come up
        _kill_coordinator(bamboo, job, after_events=chosen.randrange(1, 4))
    bamboo.until(lambda: _ready_nodes(bamboo) == NODES, "the nodes to be ready")
    rented = _instances(bamboo)
    onlooker = bamboo.begin("train", job)
    bamboo.until(lambda: bamboo.committed_steps() > 0, "the training to be on")
    onlooker.child.kill()  # it would start the coordinator again by itself
    for _ in range(NUM_KILLS - NUM_EARLY_KILLS):
        _kill_coordinator(bamboo, job, after_steps=chosen.randrange(1, 5))
    before = bamboo.committed_steps()
    bamboo.until(lambda: bamboo.committed_steps() > before, "the run to go on")

    assert sorted(node_id for _, node_id, _ in rented) == NODES
    assert _instances(bamboo) == rented, "nodes were started or stopped"
    assert {plan.generation for plan in bamboo.plans()} == {1}, "the workers were disturbed"

    bamboo.open_gate()
    run = bamboo.until(lambda: run if (run := bamboo.active_run()) and run.ended_at else None, "the run to end")
    assert (run.state, run.committed_steps, run.steps_rerun, run.restores) == ("done", PLAIN["steps"], 0, 0)
    assert (run.failovers, run.preemptions, run.reconfigurations) == (0, 0, 0)
    assert run.weights_sha256 == undisturbed(**PLAIN)
    begins = [event for event in bamboo.events("coordinator") if event.text == "the coordinator begins"]
    assert len(begins) == NUM_KILLS + 1
    assert bamboo.call("down", "--yes").exit_code == 0
    losses = seen_in(bamboo.cluster_dir / "tensorboard" / run.run_id)["train/loss"]
    assert [at.step for at in losses] == list(range(PLAIN["steps"])), "each once, none left out"


def _kill_coordinator(bamboo: Bamboo, job: Path, *, after_events: int = 0, after_steps: int = 0) -> None:
    """Once so much more has happened; then ``up`` starts another one."""
    pid = bamboo.until(lambda: lock.owner(bamboo.cluster_dir), "a coordinator")
    num_events, num_steps = len(bamboo.events()) + after_events, bamboo.committed_steps() + after_steps
    bamboo.until(
        lambda: len(bamboo.events()) >= num_events and bamboo.committed_steps() >= num_steps,
        f"{after_events} events and {after_steps} steps",
    )
    (coordinator,) = [process for process in bamboo.processes() if process.pid == pid]
    coordinator.kill()
    coordinator.wait(DEADLINE_S)
    bamboo.begin("up", job, "--yes")
    bamboo.until(lambda: lock.owner(bamboo.cluster_dir), "another coordinator")


def _ready_nodes(bamboo: Bamboo) -> list[str]:
    return [node.node_id for node in bamboo.status().nodes if node.state == NodeState.STANDBY]


def _instances(bamboo: Bamboo) -> set[tuple[str, str, InstanceState]]:
    """As the cloud lists them."""
    config = local_config(JobConfig.model_validate(dict(JOB)))
    listed = LocalProvider(bamboo.home / "local-cloud", config).instances(bamboo.status().cluster_id)
    return {(instance.instance_id, instance.node_id, instance.state) for instance in listed}
