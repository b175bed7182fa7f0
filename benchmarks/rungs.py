"""What pause_vs_peers.py measures of each rung of recovery: one disturbance a run.

``bamboo run`` on a local cloud, coordinator and agents included; stages of emulated device time. Lost time is the pause
that the coordinator counts (between the commits around the disturbance, less an undisturbed step) and the steps that
were run again, in undisturbed steps.
"""

import tempfile
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from bamboo_cli.coordinator.reader import read_events, read_steps
from benchmarks.cluster import NAME, run_bamboo

STEP = 14
STEPS = 40
CHECKPOINT_EVERY = 10
LEASE_S = 0.8
JOB: dict[str, Any] = {
    "name": NAME,
    "recipe": "mlp",
    "recipe_options": {
        "depth": 16,
        "width": 64,
        "dropout": 0.0,
        "clip_norm": None,
        "sleep_forward_s": 0.0025,
        "sleep_backward_s": 0.005,
    },
    "steps": STEPS,
    "stages": 4,
    "nodes": 6,
    "global_batch_size": 128,
    "microbatch_size": 16,
    "digest_every": 0,
    "local": {"boot_delay_s": 0.0, "notice_s": 20.0},
}
TWO_PIPELINES = {"pipelines": 2, "stages": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """``limit``: of the time lost, in undisturbed steps."""

    name: str
    limit: float
    drill: list[dict[str, Any]]
    job: dict[str, Any] = field(default_factory=dict)


CASES = (
    Case(name="0 hand over", limit=0.3, drill=[{"step": STEP, "stage": 1, "notice": True}]),
    Case(name="1 fail over", limit=0.7, drill=[{"step": STEP, "stage": 1, "action": "1B2"}]),
    Case(
        name="1 fail over, two neighbours at level 2",
        limit=1.5,
        drill=[{"step": STEP, "stage": s, "action": f"{s}B2"} for s in (1, 2)],
        job={"redundancy_level": 2},
    ),
    Case(
        name="1 fail over, another pipeline helps",
        limit=0.7,
        drill=[{"step": STEP, "stage": 1, "action": "1B2"}],
        job={"pipelines": 2, "global_batch_size": 256, "nodes": 10},
    ),
    Case(
        name="1 another pipeline takes over",
        limit=2.0,
        drill=[{"step": STEP, "stage": 1, "action": "1B1"}],
        job={**TWO_PIPELINES, "redundancy": "reroute", "nodes": 4},
    ),
    Case(
        name="2 refill from another pipeline",
        limit=2.0,
        drill=[{"step": STEP, "stage": 1, "action": "1B1"}],
        job={**TWO_PIPELINES, "redundancy": "off"},
    ),
    Case(
        name="3 restore",
        limit=CHECKPOINT_EVERY + 3.0,
        drill=[{"step": STEP, "stage": s, "action": f"{s}B2"} for s in (1, 2)],
    ),
)
FREEZE = Case(
    name="frozen worker",
    limit=0.0,
    drill=[{"step": STEP, "stage": 1, "action": "1B2", "how": "freeze"}],
    job={"lease_s": LEASE_S},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    step_s: float
    lost_steps: float
    fenced_s: float | None
    """From the moment at which a worker froze until the coordinator declared it lost."""
    summary: dict[str, Any]


def run_case(case: Case) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="bamboo-bench-") as folder:
        home = Path(folder)
        saved: dict[str, Any] = {"url": str(home / "saved"), "every": CHECKPOINT_EVERY}
        job = JOB | case.job | {"drill": case.drill, "checkpoint": saved}
        summary = run_bamboo(home, job)
        path = home / "clusters" / NAME / "state.db"
        rows = read_steps(path, summary["run_id"])
        losses = [event.at for event in read_events(path) if event.kind == "loss"]
        claims = Path(saved["url"]) / summary["run_id"] / "drill"
        struck_at = [path.stat().st_mtime for path in claims.glob("*")]
    before = [row.committed_at for row in rows if row.step < STEP]
    step_s = median(b - a for a, b in pairwise(before[2:]))
    return Outcome(
        step_s=step_s,
        lost_steps=summary["pause_s"] / step_s + summary["steps_rerun"],
        fenced_s=min(losses) - min(struck_at) if losses and struck_at else None,
        summary=summary,
    )
