"""The coordinator is killed again and again; the training does not notice, and nobody is rented or given back."""

import random
from collections.abc import Callable

from bamboo_cli.config import JobConfig
from bamboo_cli.coordinator import lock
from bamboo_cli.jobs import local_config
from bamboo_cli.providers.base import InstanceState
from bamboo_cli.providers.local import LocalProvider
from tests.failure.cluster import JOB, PLAIN, Bamboo

NUM_KILLS = 10
SEED = 20


def test_ten_deaths_of_the_coordinator_cost_nothing(bamboo: Bamboo, undisturbed: Callable[..., str]) -> None:
    chosen = random.Random(SEED)
    command = bamboo.begin("run", bamboo.paced(), "--yes", "--json")
    for _ in range(NUM_KILLS):
        _await_more(bamboo, num_events=chosen.randrange(1, 5), num_steps=chosen.randrange(1, 4))
        _kill_coordinator(bamboo)
    before = bamboo.committed_steps()
    bamboo.until(lambda: bamboo.committed_steps() > before, "the run to go on")

    rented = LocalProvider(bamboo.home / "local-cloud", local_config(JobConfig.model_validate(dict(JOB)))).instances(
        bamboo.status().cluster_id
    )
    assert sorted(instance.node_id for instance in rented) == ["n1", "n2", "n3"]
    assert {instance.state for instance in rented} == {InstanceState.RUNNING}
    assert {plan.generation for plan in bamboo.plans()} == {1}, "the workers were disturbed"

    bamboo.open_gate()
    summary = bamboo.finish(command)
    assert len([e for e in bamboo.events("coordinator") if e.text == "the coordinator begins"]) == NUM_KILLS + 1
    counts = {key: summary[key] for key in ("failovers", "preemptions", "restores", "steps_rerun", "reconfigurations")}
    assert set(counts.values()) == {0}, counts
    assert summary["weights_sha256"] == undisturbed(**PLAIN)


def _await_more(bamboo: Bamboo, *, num_events: int, num_steps: int) -> None:
    """So many more lines of the story (while nodes come up), or so many more steps."""
    bamboo.until(lambda: bamboo.active_run() is not None, "the run to begin")
    events, steps = len(bamboo.events()), bamboo.committed_steps()
    bamboo.until(
        lambda: len(bamboo.events()) >= events + num_events or bamboo.committed_steps() >= steps + num_steps,
        f"{num_events} events or {num_steps} steps",
    )


def _kill_coordinator(bamboo: Bamboo) -> None:
    pid = bamboo.until(lambda: lock.owner(bamboo.cluster_dir), "a coordinator")
    (coordinator,) = [process for process in bamboo.processes() if process.pid == pid]
    coordinator.kill()
    bamboo.until(lambda: lock.owner(bamboo.cluster_dir) not in (None, pid), "another coordinator")
