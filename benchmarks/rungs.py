"""Claim: each rung of recovery costs what it should: a hand-over nearly nothing, a rerun a step, a restore its steps.

``bamboo run`` on a local cloud, coordinator and agents included; stages of emulated device time; one disturbance a run.
Lost time is the pause that the coordinator counts (between the commits around the disturbance, less an undisturbed
step) and the steps that were run again, in undisturbed steps.

    python -m benchmarks.rungs [--rounds 3]
"""

import argparse
import sys
import tempfile
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from bamboo_cli.coordinator.reader import read_events, read_steps
from benchmarks.cluster import NAME, run_bamboo
from benchmarks.fleet import claim, finish

STEP = 14
STEPS = 40
CHECKPOINT_EVERY = 10
LEASE_S = 0.9
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
    silent_s: float
    """From the commit before to the loss."""
    summary: dict[str, Any]


def run_case(case: Case) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="bamboo-bench-") as folder:
        home = Path(folder)
        saved = {"url": str(home / "saved"), "every": CHECKPOINT_EVERY}
        job = JOB | case.job | {"drill": case.drill, "checkpoint": saved}
        summary = run_bamboo(home, job)
        path = home / "clusters" / NAME / "state.db"
        rows = read_steps(path, summary["run_id"])
        losses = [event.at for event in read_events(path) if event.kind == "loss"]
    before = [row.committed_at for row in rows if row.step < STEP]
    step_s = median(b - a for a, b in pairwise(before[2:]))
    found = [at for at in losses if at > before[-1]]
    return Outcome(
        step_s=step_s,
        lost_steps=summary["pause_s"] / step_s + summary["steps_rerun"],
        silent_s=min(found) - before[-1] if found else 0.0,
        summary=summary,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    outcomes: dict[str, list[Outcome]] = {case.name: [] for case in (*CASES, FREEZE)}
    for _ in range(arguments.rounds):
        for case in (*CASES, FREEZE):
            outcomes[case.name].append(run_case(case))
            one = outcomes[case.name][-1]
            counts = {key: one.summary[key] for key in ("failovers", "reconfigurations", "restores", "steps_rerun")}
            print(f"{case.name}: {one.lost_steps:.2f} steps of {one.step_s * 1e3:.0f} ms; {counts}", file=sys.stderr)
    lost = {case.name: median(one.lost_steps for one in outcomes[case.name]) for case in CASES}
    claims = [claim(f"{case.name}: steps lost", lost[case.name], case.limit) for case in CASES]
    rerun = sum(one.summary["steps_rerun"] for case in CASES[:-1] for one in outcomes[case.name])
    claims.append(claim("committed steps run again on rungs 0 to 2", rerun, 0))
    silent_s = median(one.silent_s - one.step_s for one in outcomes[FREEZE.name])
    claims.append(claim("frozen worker: seconds from its step to its fence", silent_s, 1.0 + LEASE_S))
    figures = {
        name: {"lost_steps": [one.lost_steps for one in found], "step_ms": [one.step_s * 1e3 for one in found]}
        for name, found in outcomes.items()
    }
    return finish("rungs", claims, figures=figures)


if __name__ == "__main__":
    sys.exit(main())
