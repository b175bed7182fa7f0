"""A job on the local cloud that follows a recorded trace, from the first node to the last."""

from collections.abc import Callable
from pathlib import Path

import benchmarks
from tests.cluster import PLAIN, Bamboo

TRACE = Path(benchmarks.__file__).parent / "small_trace.csv"
"""Three nodes; one is taken, later two at once; each time as many come again."""


def test_a_run_on_a_trace_loses_its_nodes_and_no_work(bamboo: Bamboo, undisturbed: Callable[..., str]) -> None:
    local = {"boot_delay_s": 0.0, "notice_s": 0.0, "trace": {"path": str(TRACE), "speed": 30.0}}

    command = bamboo.begin("run", bamboo.paced(local=local), "--yes", "--json")
    bamboo.until(bamboo.active_run, "the run to be accepted")
    bamboo.until(lambda: sum(e.kind == "preemption" for e in bamboo.events()) == 3, "the trace to take three nodes")
    bamboo.until(lambda: [len(plan.worker_ids()) for plan in bamboo.plans()][-1:] == [3], "three nodes to train again")
    bamboo.open_gate()
    summary = bamboo.finish(command)

    assert summary["state"] == "done"
    assert summary["weights_sha256"] == undisturbed(**PLAIN)
    assert bamboo.left() == []
