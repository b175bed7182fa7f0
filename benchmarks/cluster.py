"""One ``bamboo run`` on a local cloud of its own, with kills in mid-step, and what its state file tells afterwards."""

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from bamboo_trainer.dryrun import Durations, dry_run
from bamboo_trainer.plan import Plan, PlanKind
from bamboo_trainer.schedule import Action

from bamboo_cli.coordinator.pages import read_pages
from bamboo_cli.coordinator.reader import read_plans, read_steps
from bamboo_cli.coordinator.status import StepRow

NAME = "benchmark"
RUN_TIMEOUT_S = 300.0
_ADOPTED = re.compile(r"^(\S+ \S+),(\d{3}) \S plan (\d+) \(failover\)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failover:
    """One kill. Seconds; ``pause_s`` is what the step took beyond an undisturbed one."""

    step: int
    action: str
    decided_s: float
    """From the kill to the moment of the event on which the coordinator decided."""
    adopted_s: float
    """From the kill until the last survivor took the new plan up."""
    pause_s: float
    recomputation_s: float
    """Of the pause: what the shadow had to compute again, by the dry run of this very loss."""
    whole_again_s: float
    """All time lost until all stages have a node of their own again: the recut over three nodes and back included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbed:
    step_s: float
    """Median of the undisturbed steps."""
    failovers: tuple[Failover, ...]


def disturbed_run(job: dict[str, Any], kills: list[dict[str, Any]], home: Path) -> Disturbed:
    """Runs the job and gives everything back. Raises RuntimeError when it, or a failover, did not end as it should."""
    job = job | {"name": NAME, "drill": kills, "checkpoint": {"url": str(home / "saved"), "every": 10}}
    summary = run_bamboo(home, job)
    run_id = summary["run_id"]
    if summary["failovers"] != len(kills) or summary["restores"]:
        raise RuntimeError(f"{len(kills)} kills ended in {summary['failovers']} failovers: {summary}")
    path = home / "clusters" / NAME / "state.db"
    steps = {row.step: row for row in read_steps(path, run_id)}
    plans = {plan.generation: plan for plan in read_plans(path, run_id)}
    usual_s = _usual_step_s(steps, plans, job["stages"])
    adopted = _adoptions(home)
    failovers = []
    for index, kill in enumerate(kills):
        killed_at = (home / "saved" / run_id / "drill" / str(index)).stat().st_mtime
        generation = steps[kill["step"]].generation
        before = plans[max(g for g in plans if g < generation)]
        if plans[generation].kind is not PlanKind.FAILOVER or len(before.pipelines[0].stages) != job["stages"]:
            raise RuntimeError(
                f"the kill in step {kill['step']} did not meet a whole pipeline: more steps between them"
            )
        failovers.append(
            Failover(
                step=kill["step"],
                action=kill["action"],
                decided_s=_made_at(path, generation) - killed_at,
                adopted_s=max(adopted[generation]) - killed_at,
                pause_s=_passed(steps, kill["step"]) - usual_s,
                recomputation_s=_recomputation_s(path, run_id, before, kill),
                whole_again_s=_lost_until_whole(steps, plans, kill["step"], job["stages"], usual_s),
            )
        )
    return Disturbed(step_s=usual_s, failovers=tuple(failovers))


def run_bamboo(home: Path, job: dict[str, Any]) -> dict[str, Any]:
    """``bamboo run`` of the job, called ``NAME``; its summary. Raises RuntimeError when it does not end well."""
    (home / "job.yaml").write_text(json.dumps(job))  # JSON is YAML
    arguments = ("run", str(home / "job.yaml"), "--yes", "--json")
    environment = os.environ | {"BAMBOO_HOME": str(home), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "bamboo_cli.main"]
    try:
        done = subprocess.run(
            [*command, *arguments], env=environment, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"bamboo run ended with {done.returncode}: {done.stderr[-2000:]}")
    except BaseException:
        subprocess.run([*command, "down", "--cluster", NAME, "--yes"], env=environment, timeout=60, check=False)
        raise
    summary: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return summary


def _passed(steps: dict[int, StepRow], step: int) -> float:
    return steps[step].committed_at - steps[step - 1].committed_at


def _usual_step_s(steps: dict[int, StepRow], plans: dict[int, Plan], num_stages: int) -> float:
    """Between commits under one and the same whole plan; not its first, which may wait for layers under way."""
    seconds = [
        _passed(steps, step)
        for before, step in pairwise(sorted(steps))
        if steps[before].generation == steps[step].generation
        and plans[steps[step].generation].kind is PlanKind.BOUNDARY
        and len(plans[steps[step].generation].pipelines[0].stages) == num_stages
    ]
    return median(seconds[1:])


def _lost_until_whole(
    steps: dict[int, StepRow], plans: dict[int, Plan], step: int, num_stages: int, usual_s: float
) -> float:
    whole = next(
        (
            later
            for later in range(step + 1, max(steps) + 1)
            if plans[steps[later].generation].kind is PlanKind.BOUNDARY
            and len(plans[steps[later].generation].pipelines[0].stages) == num_stages
        ),
        None,
    )
    if whole is None:
        raise RuntimeError(f"no replacement came after the kill in step {step}: more steps between them")
    passed_s = steps[whole].committed_at - steps[step - 1].committed_at
    return passed_s - (whole - step + 1) * usual_s


def _recomputation_s(path: Path, run_id: str, plan: Plan, kill: dict[str, Any]) -> float:
    """The dry run of the step with the loss, less that without: each stage's actions as long as they took in the
    plan's undisturbed steps before, messages and the news of the loss in no time."""
    slots = [
        slot
        for page in read_pages(path, run_id)
        if page.recorded.generation == plan.generation
        and page.recorded.committed
        and plan.first_step < page.recorded.step < kill["step"]
        for slot in page.recorded.slots
    ]

    def per_layer(kind: str) -> list[float]:
        return [
            median(s.end_us - s.start_us for s in slots if re.fullmatch(rf"{stage.stage_index}{kind}\d+", s.action))
            / 1e6
            / len(stage.layers)
            for stage in plan.pipelines[0].stages
            for _ in stage.layers
        ]

    durations = Durations(forward=per_layer("F"), backward=per_layer("B"))
    disturbed = dry_run(plan, durations, Action.parse(kill["action"]))
    return disturbed.makespan - dry_run(plan, durations).makespan


def _made_at(path: Path, generation: int) -> float:
    from sqlalchemy import select

    from bamboo_cli.coordinator import schema
    from bamboo_cli.coordinator.store import open_for_reading, reading

    engine = open_for_reading(path)
    with reading(engine) as connection:
        query = select(schema.plans.c.made_at).where(schema.plans.c.generation == generation)
        made_at: float = connection.execute(query).scalar_one()
    engine.dispose()
    return made_at


def _adoptions(home: Path) -> dict[int, list[float]]:
    """When each worker took up each failover plan, from the workers' logs."""
    found: dict[int, list[float]] = {}
    for log in (home / "local-cloud" / "instances").glob("*/worker.log"):
        for clock, milliseconds, generation in _ADOPTED.findall(log.read_text()):
            at = time.mktime(time.strptime(clock, "%Y-%m-%d %H:%M:%S")) + int(milliseconds) / 1e3
            found.setdefault(int(generation), []).append(at)
    return found
