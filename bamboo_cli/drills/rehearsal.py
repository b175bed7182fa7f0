"""A drill in practice: a local cluster of its own, the job undisturbed and with losses, everything given back."""

import math
import shutil
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from urllib.parse import urlsplit

import yaml

from bamboo_cli import clusters, output, paths, training
from bamboo_cli.config import CheckpointConfig, JobConfig
from bamboo_cli.coordinator.events import StoryKind
from bamboo_cli.coordinator.reader import read_events, read_plans, read_steps
from bamboo_cli.coordinator.status import StoryEvent
from bamboo_cli.coordinator.store import state_path
from bamboo_cli.drills.facts import Record, facts_of_losses, loss_gap, num_bad_copies, usual_step_s
from bamboo_cli.drills.losses import How, Loss, choose_losses, gap_of, steps_for
from bamboo_cli.drills.promise import promise_of
from bamboo_cli.drills.verdict import Facts, Outcome, Verdict, judge
from bamboo_cli.errors import BambooError, SignalledError
from bamboo_cli.renting import rent
from bamboo_cli.teardown import bring_down

SUFFIX = "-drill"
MAX_NAME = 40
DEFAULT_NOTICE_S = 10.0
TAKEN = " is to be taken "
"""In the story, of a node that the cloud was asked to take."""
DIGEST_EVERY = 5
"""Steps between comparisons of shadows with their owners, unless the job compares more often, or never."""


class InterruptedDrillError(BambooError):
    exit_code = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class Drill:
    """Everything that a drill found out."""

    job: str
    cluster: str
    cloud: str
    """That the job names; the drill was on the local one."""
    seed: int
    num_pipelines: int
    num_stages: int
    num_steps: int
    num_nodes: int
    verdict: Verdict
    facts: Facts


def drill_name(job: JobConfig) -> str:
    return job.name[: MAX_NAME - len(SUFFIX)] + SUFFIX


def rehearsal_of(job: JobConfig, *, num_steps: int | None, num_losses: int, losses: Sequence[Loss] = ()) -> JobConfig:
    """The job as it is drilled: its shape, recipe, seed and protection; fewer steps, the local cloud, a node standing
    by for each loss, so that every loss meets a whole plan.

    ``num_steps`` None: as many as the losses need, for all that is known yet. Raises UsageError when they are too few.
    """
    num_steps = num_steps or steps_for(num_losses)
    num_pipelines, num_stages = job.fixed_shape
    needed = math.ceil(num_pipelines * num_stages / job.local.accelerators)
    if job.local.accelerators > 1 and num_pipelines * num_stages > 1:
        needed = max(needed, 2)  # on a single node there would be nothing to rehearse
    num_nodes = max(job.num_nodes, max(needed, job.min_nodes) + num_losses)
    every = max(1, gap_of(num_steps, num_losses) // 2)
    if job.checkpoint.every != "auto":
        every = min(every, job.checkpoint.every)
    zones = tuple(zone.model_copy(update={"capacity": max(zone.capacity, num_nodes)}) for zone in job.local.zones)
    return job.model_copy(
        update={
            "name": drill_name(job),
            "cloud": "local",
            "aws": None,
            "steps": num_steps,
            "nodes": num_nodes,
            "checkpoint": CheckpointConfig(url=None, every=every, keep=job.checkpoint.keep),
            "trackers": (),  # two short runs are nothing to compare others with
            "digest_every": min(job.digest_every, DIGEST_EVERY),
            "local": job.local.model_copy(
                update={
                    "zones": zones,
                    "notice_s": job.local.notice_s or DEFAULT_NOTICE_S,
                    "preemptions_per_hour": 0.0,
                    "trace": None,
                    "replace": False,
                }
            ),
            "drill": tuple(loss.entry for loss in losses),
        }
    )


def perform(job: JobConfig, hows: Sequence[How], *, num_steps: int | None, seed: int) -> Drill:
    """Both runs, and what they show. Everything is given back, also on Ctrl-C (InterruptedDrillError).

    ``num_steps`` None: as many as the losses need. Raises UsageError when they are too few.
    """
    first = rehearsal_of(job, num_steps=num_steps, num_losses=len(hows))
    cluster_dir = paths.cluster_dir(first.name)
    path = state_path(cluster_dir)
    try:
        with given_back(cluster_dir):
            rent(first, _text(first), None, yes=True, new=True)
            undisturbed, usual_s = _run_undisturbed(path, first)
            wanted = num_steps or steps_for(len(hows), usual_s)
            if wanted > first.steps:
                output.line(f"\nA step takes {usual_s * 1e3:.0f} ms; {wanted} of them give each loss its time.")
                longer = rehearsal_of(job, num_steps=wanted, num_losses=len(hows))
                undisturbed, usual_s = _run_undisturbed(path, longer)
            elif wanted < (enough := steps_for(len(hows), usual_s)):
                output.note(f"{wanted} steps of {usual_s * 1e3:.0f} ms are few for these losses; {enough} would do.")
            losses = _choose(job, hows, num_steps=wanted, seed=seed)
            disturbing = rehearsal_of(job, num_steps=wanted, num_losses=len(hows), losses=losses)
            disturbed = _run(path, disturbing, f"disturbed by {', '.join(hows)}")
            struck_at = _struck_at(losses, disturbed, read_events(path, run=disturbed.run_id))
    except (KeyboardInterrupt, SignalledError):
        raise InterruptedDrillError("the drill was interrupted", next_step="Everything was given back.") from None
    facts = _facts(path, job, losses, struck_at, undisturbed, disturbed, usual_s)
    shutil.rmtree(cluster_dir / "checkpoints", ignore_errors=True)
    return Drill(
        job=job.name,
        cluster=first.name,
        cloud=job.cloud,
        seed=seed,
        num_pipelines=job.fixed_shape[0],
        num_stages=job.fixed_shape[1],
        num_steps=wanted,
        num_nodes=first.num_nodes,
        verdict=judge(facts),
        facts=facts,
    )


def _choose(job: JobConfig, hows: Sequence[How], *, num_steps: int, seed: int) -> tuple[Loss, ...]:
    return choose_losses(
        hows,
        num_steps=num_steps,
        num_pipelines=job.fixed_shape[0],
        num_stages=job.fixed_shape[1],
        num_microbatches=job.num_microbatches,
        seed=seed,
    )


@contextmanager
def given_back(cluster_dir: Path) -> Iterator[None]:
    """Whatever ends the block, Ctrl-C, a closed terminal or a polite kill included: the cluster is given back after it,
    and another Ctrl-C does not keep it from that."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    def patience(number: int, frame: FrameType | None) -> None:
        output.note("everything is being given back; this takes a moment")

    polite = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, interrupt) for number in polite}
    before[signal.SIGINT] = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        for number in before:
            signal.signal(number, patience)
        try:
            if clusters.is_up(cluster_dir):
                bring_down(cluster_dir)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _text(job: JobConfig) -> str:
    """The rehearsal as a job file, for whoever looks at the cluster later."""
    return yaml.safe_dump(job.model_dump(mode="json", exclude_unset=True), sort_keys=False)


def _run_undisturbed(path: Path, job: JobConfig) -> tuple[training.RunSummary, float]:
    """And its usual step time, in seconds. Raises RunFailedError."""
    found = _run(path, job, "undisturbed")
    training.check_done(found, path)
    return found, usual_step_s(read_steps(path, found.run_id))


def _run(path: Path, job: JobConfig, how: str) -> training.RunSummary:
    output.line(f"\n{job.steps} steps, {how}:")
    return training.look_on(path, training.start_run(path, job, _text(job)))


def _struck_at(
    losses: Sequence[Loss], run: training.RunSummary, story: Sequence[StoryEvent]
) -> tuple[float | None, ...]:
    """At an action: when the victim claimed the place, just before it was struck. Else: when the cloud was asked."""
    claims = Path(urlsplit(run.checkpoint_url).path) / "drill"  # bamboo_trainer.drill.Claims
    at_action = iter(_made_at(claims / str(index)) for index in range(sum(loss.how.is_at_action for loss in losses)))
    asked = iter([event.at if TAKEN in event.text else None for event in story if event.kind == StoryKind.DRILL])
    return tuple(next(at_action) if loss.how.is_at_action else next(asked, None) for loss in losses)


def _made_at(file: Path) -> float | None:
    return file.stat().st_mtime if file.exists() else None


def _facts(
    path: Path,
    job: JobConfig,
    losses: Sequence[Loss],
    struck_at: Sequence[float | None],
    undisturbed: training.RunSummary,
    disturbed: training.RunSummary,
    usual_s: float,
) -> Facts:
    before, after = _record(path, undisturbed.run_id), _record(path, disturbed.run_id)
    return Facts(
        promise=promise_of(job.fixed_mode, num_pipelines=job.fixed_shape[0], num_stages=job.fixed_shape[1]),
        usual_step_s=usual_s,
        undisturbed=_outcome(undisturbed),
        disturbed=_outcome(disturbed),
        losses=facts_of_losses(losses, struck_at, after, usual_s),
        loss_gap=loss_gap(before, after),
        num_bad_copies=num_bad_copies((*before.story, *after.story)),
    )


def _record(path: Path, run_id: str) -> Record:
    return Record(story=read_events(path, run=run_id), plans=read_plans(path, run_id), steps=read_steps(path, run_id))


def _outcome(run: training.RunSummary) -> Outcome:
    return Outcome(
        run_id=run.run_id,
        state=run.state,
        reason=run.reason,
        steps=run.steps,
        samples=run.samples,
        final_loss=run.final_loss,
        weights_sha256=run.weights_sha256,
        steps_rerun=run.steps_rerun,
        pause_s=run.pause_s,
        wall_s=run.wall_s,
    )
