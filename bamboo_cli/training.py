"""A run from the outside: ask for it, look on until it has ended, sum it up."""

import shlex
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from bamboo_cli import clusters, output
from bamboo_cli.coordinator.states import RunReason
from bamboo_cli.errors import BudgetError, DetachedError, RunFailedError, StateError, StoppedError

if TYPE_CHECKING:
    from bamboo_cli.config import JobConfig
    from bamboo_cli.coordinator.settings import Resumes

MAX_RESTARTS = 5
"""Without the run getting any further."""
LATEST = "latest"
"""In place of a run id: the newest run of the cluster's name that has a complete checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """What is printed at the end, as text and as JSON. Money in dollars, up to the end of the run."""

    run_id: str
    state: str
    reason: str
    steps: int
    """Committed."""
    samples: int
    first_loss: float | None
    final_loss: float | None
    weights_sha256: str | None
    """Of all parameters in layer order: equal bits give equal digests."""
    preemptions: int
    failovers: int
    reconfigurations: int
    restores: int
    steps_rerun: int
    pause_s: float
    wall_s: float
    cost_usd: float
    on_demand_usd: float
    on_demand_note: str
    """Where that is an estimate: that it is one, and of when."""
    checkpoint_step: int | None
    checkpoint_url: str
    model_url: str | None
    drills_missed: tuple[str, ...] = ()
    """Losses on purpose that never came about."""

    @property
    def done(self) -> bool:
        return self.state == "done"

    @property
    def stopped_by_down(self) -> bool:
        return self.state == "stopped" and self.reason.startswith((RunReason.REQUESTED, RunReason.CLOSED))


class CoordinatorKeeper:
    """Who looks on also looks after the coordinator: without one a run would never end, and cost for ever."""

    def __init__(self, cluster_dir: Path, committed_steps: Callable[[], int]) -> None:
        self._cluster_dir = cluster_dir
        self._committed_steps = committed_steps
        self._steps_seen = -1
        self._num_starts = 0

    def look(self) -> None:
        """Start it if it is dead. Raises StateError when it does not start, or dies again and again."""
        from bamboo_cli.coordinator.lock import is_locked

        if is_locked(self._cluster_dir) or not clusters.is_up(self._cluster_dir):
            return
        committed_steps = self._committed_steps()
        if committed_steps > self._steps_seen:
            self._steps_seen, self._num_starts = committed_steps, 0
        if self._num_starts >= MAX_RESTARTS:
            raise StateError(
                f"the coordinator died again; it was started {MAX_RESTARTS} times without the run getting any further",
                next_step=f"Its log is {self._cluster_dir / 'coordinator.log'}.",
            )
        self._num_starts += 1
        if clusters.ensure_coordinator(self._cluster_dir):
            output.note("the coordinator had died; it was started again")


def how_to_go_on(run_id: str) -> str:
    """From the newest complete checkpoint of a run that has ended too early."""
    return f"`bamboo run JOB --resume {run_id}` goes on from it."


def run_to_join(path: Path, job: "JobConfig", resume: str | None = None) -> str | None:
    """The id of the run that goes on there, when it is of this very job and recipe; None when none goes on.

    ``resume``: the run that it has to be, or to go on from, or ``latest``. Raises StateError when it is another.
    """
    from bamboo_cli import jobs
    from bamboo_cli.coordinator.reader import read_active_spec
    from bamboo_cli.recipe_file import recipe_digest, recipe_source

    spec = read_active_spec(path)
    if spec is None:
        return None
    digest, source = recipe_digest(job.recipe), recipe_source(job.recipe, job.cloud)
    asked = jobs.run_spec(job, spec.run_id, spec.training.checkpoint_url, digest, source)
    resumed = spec.resumes.run_id if spec.resumes is not None else None
    if asked != replace(spec, resumes=None) or resume not in (None, LATEST, spec.run_id, resumed):
        name = path.parent.name
        raise StateError(
            f"run {spec.run_id} of another job, of other settings or of another recipe goes on in cluster {name}",
            next_step=f"Look on with `bamboo status --watch --cluster {name}`; "
            f"stop it and give everything back with `bamboo down --cluster {name}`.",
        )
    return spec.run_id


def start_run(path: Path, job: "JobConfig", job_text: str, resumes: "Resumes | None" = None) -> str:
    """The id of a new run on the cluster of ``path``. Raises RefusedError (another run is on), StateError.

    ``resumes``: what it goes on from; None: it begins at step 0.
    """
    from bamboo_cli.coordinator.store import RequestKind
    from bamboo_cli.recipe_file import recipe_digest, recipe_source

    payload = {
        "job_text": job_text,
        "job": job.model_dump(mode="json", exclude_unset=True),
        "recipe_sha256": recipe_digest(job.recipe),
        "recipe_source": recipe_source(job.recipe, job.cloud),
        "resumes": None if resumes is None else asdict(resumes),
    }
    run_id = clusters.ask(path, RequestKind.TRAIN, payload, what="the coordinator to take the run")
    if "tensorboard" in job.trackers:
        output.note(f"Its curves: tensorboard --logdir {shlex.quote(str(path.parent / 'tensorboard'))}")
    return run_id


def look_on(path: Path, run_id: str, *, step_lines: int | None = None, plain: bool = False) -> RunSummary:
    """Until the run has ended. A coordinator that dies meanwhile is started again.

    Raises DetachedError after Ctrl-C: the run goes on; StateError when the coordinator cannot be kept alive.
    """
    from bamboo_cli.watching import read_run, watch_run

    keeper = CoordinatorKeeper(path.parent, lambda: read_run(path, run_id).committed_steps)
    try:
        watch_run(path, run_id, step_lines=step_lines, plain=plain, between_looks=keeper.look)
    except KeyboardInterrupt:
        name = path.parent.name
        raise DetachedError(
            f"detached; run {run_id} goes on",
            next_step=f"Look again with `bamboo status --watch --cluster {name}`; "
            f"stop it and give everything back with `bamboo down --cluster {name}`.",
        ) from None
    return summary_of(path, run_id)


def summary_of(path: Path, run_id: str) -> RunSummary:
    """Raises StateError."""
    from bamboo_cli.bills import read_run_bill
    from bamboo_cli.coordinator.reader import read_runs
    from bamboo_cli.costs.ledger import usd
    from bamboo_cli.missed_drills import read_missed

    run = next(run for run in read_runs(path) if run.run_id == run_id)

    now = time.time()
    spent = read_run_bill(path, run_id, now=now).amount
    return RunSummary(
        run_id=run.run_id,
        state=run.state,
        reason=run.reason,
        steps=run.committed_steps,
        samples=run.num_samples,
        first_loss=run.first_loss,
        final_loss=run.loss,
        weights_sha256=run.weights_sha256,
        preemptions=run.preemptions,
        failovers=run.failovers,
        reconfigurations=run.reconfigurations,
        restores=run.restores,
        steps_rerun=run.steps_rerun,
        pause_s=run.pause_s,
        wall_s=(run.ended_at or now) - run.started_at,
        cost_usd=usd(spent.spot_microusd),
        on_demand_usd=usd(spent.on_demand_microusd),
        on_demand_note=spent.on_demand_note,
        checkpoint_step=run.checkpoint_step,
        checkpoint_url=str(run.spec["checkpoint_url"]),
        model_url=run.model_url,
        drills_missed=read_missed(path, run_id),
    )


def tell_what_stays(path: Path) -> None:
    """Nodes outlive their run, unless somebody takes the cluster down. Raises StateError."""
    from bamboo_cli.coordinator.store import ClusterState

    if clusters.read_state(path) is ClusterState.UP:
        output.note("The nodes are still rented, for another run or until `bamboo down`.")


def check_done(summary: RunSummary, path: Path, job: Path | None = None) -> None:
    """Raises RunFailedError for a run that did not end well, with what can be gone on from: by the job file ``job``."""
    if summary.done:
        return
    if summary.stopped_by_down:
        raise StoppedError(
            f"run {summary.run_id} was stopped by `bamboo down`, after {output.plural(summary.steps, 'step')}",
            next_step=f"{_what_is_kept(summary, job)} `bamboo events --cluster {path.parent.name}` tells the story.",
        )
    saved = (
        f"The newest complete checkpoint is of step {summary.checkpoint_step}, in {summary.checkpoint_url}; "
        + how_to_go_on(summary.run_id)
        if summary.checkpoint_step is not None
        else "There is no complete checkpoint."
    )
    failure = BudgetError if summary.reason.startswith(RunReason.BUDGET) else RunFailedError
    raise failure(
        f"run {summary.run_id} {summary.state} after {summary.steps} steps: {summary.reason or 'no reason is known'}",
        next_step=f"{saved} `bamboo events --cluster {path.parent.name}` tells the story, `bamboo logs` the details.",
    )


def _what_is_kept(summary: RunSummary, job: Path | None) -> str:
    if summary.checkpoint_step is None:
        return "There is no complete checkpoint, so a new run begins at step 0."
    again = summary.steps - 1 - summary.checkpoint_step
    todo = f" (the {output.plural(again, 'step')} after it will be computed again)" if again > 0 else ""
    command = f"bamboo run {shlex.quote(str(job)) if job else 'JOB'} --resume {summary.run_id}"
    return (
        f"Kept is the checkpoint of step {summary.checkpoint_step}, in {summary.checkpoint_url}{todo}; "
        f"go on with `{command}`."
    )
