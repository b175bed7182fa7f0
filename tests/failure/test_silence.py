"""Workers and nodes that hang or lose their links: noticed within the lease, fenced, and taken in again afterwards."""

import json
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import psutil
import pytest

from bamboo_cli.coordinator.status import NodeStatus, StoryEvent
from tests.cluster import PLAIN, WITHOUT_REPLACEMENT, Bamboo, Command

LEASE_S = 4.0
STEP_S = 1.0
"""What passes at most between the last commit and the strike; a step of the paced job takes a third of it, or longer on
a busy machine: then what steps have taken there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Struck:
    """A run whose node n2 has just been declared lost."""

    command: Command
    loss: StoryEvent
    worker: psutil.Process | None
    """The old one, if it is still there."""


@pytest.mark.soak  # the frozen node below is the harder case
def test_a_frozen_worker_is_killed_and_a_new_one_takes_its_place(
    bamboo: Bamboo, undisturbed: Callable[..., str]
) -> None:
    struck = _strike(bamboo, "freeze")

    _await_new_worker(bamboo)

    assert _worker(bamboo, "n2/1") is None, "the frozen worker was not fenced"
    _ends_well(bamboo, struck, undisturbed)


def test_a_worker_whose_links_are_cut_is_killed_and_a_new_one_takes_its_place(
    bamboo: Bamboo, undisturbed: Callable[..., str]
) -> None:
    struck = _strike(bamboo, "cut")

    _await_new_worker(bamboo)

    assert _worker(bamboo, "n2/1") is None, "the worker that was cut off was not fenced"
    _ends_well(bamboo, struck, undisturbed)


def test_a_frozen_node_that_thaws_is_refused_and_becomes_a_standby(
    bamboo: Bamboo, undisturbed: Callable[..., str]
) -> None:
    struck = _strike(bamboo, "freeze_node", local=WITHOUT_REPLACEMENT)
    assert struck.worker is not None and struck.worker.status() == psutil.STATUS_STOPPED
    lost_at = bamboo.committed_steps()
    bamboo.until(lambda: bamboo.committed_steps() > lost_at + 2, "the others to go on")

    for process in _of_node(bamboo, "n2"):
        with suppress(psutil.NoSuchProcess):  # the agent may have ended its worker by now
            process.send_signal(signal.SIGCONT)

    _await_new_worker(bamboo)
    assert _worker(bamboo, "n2/1") is None, "the old worker was not killed"
    assert any(event.text == "n2 came back" for event in bamboo.events("node"))
    shown = json.loads(bamboo.call("status", "--json").stdout)
    (node,) = [node for node in shown["nodes"] if node["node_id"] == "n2"]
    assert node["state"] in ("standby", "active")
    assert [worker["worker_id"] for worker in node["workers"]] == ["n2/2"]
    _ends_well(bamboo, struck, undisturbed)


def _strike(bamboo: Bamboo, how: str, **changes: Any) -> Struck:
    drill = [{"step": 5, "node": "n2", "action": "REDUCE", "how": how}]
    command = bamboo.begin("run", bamboo.paced(drill=drill, lease_s=LEASE_S, **changes), "--yes", "--json")
    loss = bamboo.until(lambda: _loss(bamboo), "n2 to be lost")
    worker = _worker(bamboo, "n2/1")
    commits = _commits_before(bamboo, loss)
    silent_s, longest_s = loss.at - commits[-1], max(after - before for before, after in pairwise(commits))
    assert silent_s < LEASE_S + 1.0 + max(STEP_S, longest_s), f"noticed only after {silent_s:.1f} s"
    return Struck(command=command, loss=loss, worker=worker)


def _loss(bamboo: Bamboo) -> StoryEvent | None:
    if bamboo.active_run() is None:
        return None
    lost = bamboo.events("loss")
    assert all(event.node_id == "n2" for event in lost), bamboo.story()
    return lost[0] if lost else None


def _await_new_worker(bamboo: Bamboo) -> NodeStatus:
    def found() -> NodeStatus | None:
        (node,) = [node for node in bamboo.status().nodes if node.node_id == "n2"]
        is_new = [worker.worker_id for worker in node.workers] == ["n2/2"]
        return node if is_new and node.state in ("standby", "active") else None

    return bamboo.until(found, "n2 to have a new worker")


def _ends_well(bamboo: Bamboo, struck: Struck, undisturbed: Callable[..., str]) -> None:
    bamboo.open_gate()
    summary = bamboo.finish(struck.command)
    counts = {key: summary[key] for key in ("failovers", "preemptions", "restores", "steps_rerun")}
    assert counts == {"failovers": 1, "preemptions": 0, "restores": 0, "steps_rerun": 0}, bamboo.story()
    assert summary["weights_sha256"] == undisturbed(**PLAIN)


def _commits_before(bamboo: Bamboo, event: StoryEvent) -> list[float]:
    assert event.run_id is not None
    return sorted(step.committed_at for step in bamboo.steps(event.run_id) if step.committed_at < event.at)


def _of_node(bamboo: Bamboo, node_id: str) -> list[psutil.Process]:
    (instance,) = {p.environ()["BAMBOO_INSTANCE"] for p in bamboo.processes() if _says(p, "BAMBOO_NODE_ID", node_id)}
    return [p for p in bamboo.processes() if _says(p, "BAMBOO_INSTANCE", instance)]


def _worker(bamboo: Bamboo, worker_id: str) -> psutil.Process | None:
    return next((p for p in bamboo.processes() if _says(p, "BAMBOO_WORKER_ID", worker_id)), None)


def _says(process: psutil.Process, variable: str, value: str) -> bool:
    try:
        return process.environ().get(variable) == value
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False
