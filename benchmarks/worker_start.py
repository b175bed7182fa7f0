"""Claim: a new node commits its first step within a second of its joining, when its worker is forked by a nursery that
has loaded torch; within 3.5 s, when its worker is a cold process.

``bamboo run`` on a local cloud, coordinator and agents included, two stages of emulated device time. Nodes are killed;
a new one joins for each, gets a worker, learns its layers while training goes on, and takes its stage back at a step
boundary. From the moment at which the coordinator has its agent's link, to its first commit.

    python -m benchmarks.worker_start [--kills 3]
"""

import argparse
import os
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from bamboo_agent.config import COMMAND_VARIABLE

from bamboo_cli.coordinator.reader import read_events, read_plans, read_steps
from benchmarks.cluster import NAME, run_bamboo
from benchmarks.fleet import claim, finish

FORKED_S = 1.0
COLD_S = 3.5
STEPS_BETWEEN = 60
"""Enough for a cold worker to host again before the next kill, and so for a pipeline that is whole."""
JOB: dict[str, Any] = {
    "name": NAME,
    "recipe": "mlp",
    "recipe_options": {"depth": 8, "width": 64, "sleep_forward_s": 0.0025, "sleep_backward_s": 0.005},
    "stages": 2,
    "nodes": 2,
    "global_batch_size": 32,
    "microbatch_size": 8,
    "digest_every": 0,
    "local": {"boot_delay_s": 0.0},
}


def seconds_to_first_commit(num_kills: int) -> list[float]:
    """Of each node that joined after a kill. Raises RuntimeError when one of them never committed a step."""
    steps = [20 + STEPS_BETWEEN * index for index in range(num_kills)]
    with tempfile.TemporaryDirectory(prefix="bamboo-bench-") as folder:
        home = Path(folder)
        drill = [{"step": step, "stage": 1, "action": "1B1"} for step in steps]
        saved = {"url": str(home / "saved"), "every": 50}
        job = JOB | {"steps": steps[-1] + STEPS_BETWEEN, "drill": drill, "checkpoint": saved}
        summary = run_bamboo(home, job)
        path = home / "clusters" / NAME / "state.db"
        events, rows = read_events(path), read_steps(path, summary["run_id"])
        plans = {plan.generation: plan for plan in read_plans(path, summary["run_id"])}
    usual_s = median(b.committed_at - a.committed_at for a, b in pairwise(rows))
    begun_at = rows[0].committed_at
    seconds = []
    for event in events:
        if event.kind != "node" or " joined " not in event.text or event.at < begun_at:
            continue
        by_it = [
            row.committed_at
            for row in rows
            if event.node_id in {member.node_id for member in plans[row.generation].members}
        ]
        if not by_it:
            raise RuntimeError(f"{event.node_id} joined and never committed a step: {summary}")
        seconds.append(min(by_it) - event.at)
    print(f"{[round(s, 2) for s in seconds]} s; a step takes {usual_s * 1e3:.0f} ms", file=sys.stderr)
    if len(seconds) != num_kills:
        raise RuntimeError(f"{num_kills} kills brought {len(seconds)} nodes: {summary}")
    return seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=3, help="new nodes, of either kind")
    arguments = parser.parse_args()
    forked = seconds_to_first_commit(arguments.kills)
    os.environ[COMMAND_VARIABLE] = f"{sys.executable} -m bamboo_trainer"
    cold = seconds_to_first_commit(arguments.kills)
    claims = [
        claim("seconds from joining to the first commit, worker forked", median(forked), FORKED_S),
        claim("seconds from joining to the first commit, worker cold", median(cold), COLD_S),
    ]
    return finish("worker_start", claims, figures={"forked_s": forked, "cold_s": cold})


if __name__ == "__main__":
    sys.exit(main())
