"""A run as commands show it, from what the machine knows and the newest steps on record."""

from bamboo_trainer.control import TrainingSpec
from pydantic import TypeAdapter
from sqlalchemy import Connection, select

from bamboo_cli.coordinator import schema
from bamboo_cli.coordinator.known import Known
from bamboo_cli.coordinator.limits import most_used
from bamboo_cli.coordinator.run_entities import Checkpoints, Progress, Run
from bamboo_cli.coordinator.status import RunStatus

RATE_STEPS = 10
"""Samples per second are averaged over so many steps."""

_SPEC: TypeAdapter[TrainingSpec] = TypeAdapter(TrainingSpec)


def run_status(connection: Connection, known: Known, run: Run, now: float | None = None) -> RunStatus:
    """``now``: for what is left of its limits."""
    progress = known.progress.get(run.run_id, Progress(run_id=run.run_id))
    checkpoints = known.checkpoints.get(run.run_id, Checkpoints(run_id=run.run_id))
    complete = checkpoints.complete
    training = run.training or run.spec.training
    table = schema.steps
    shown = select(table.c.step_s, table.c.num_samples, table.c.learning_rate)
    query = shown.where(table.c.run_id == run.run_id, table.c.step <= progress.committed_step)
    newest = connection.execute(query.order_by(table.c.step.desc()).limit(RATE_STEPS)).all()
    took = sum(step.step_s for step in newest)
    return RunStatus(
        run_id=run.run_id,
        state=run.state,
        spec=_SPEC.dump_python(training, mode="json"),
        num_steps=training.num_steps,
        min_nodes=run.spec.min_nodes,
        started_at=run.started_at,
        ended_at=run.ended_at,
        committed_steps=progress.committed_step + 1,
        first_loss=progress.first_loss,
        loss=progress.loss,
        learning_rate=newest[0].learning_rate if newest else None,
        samples_per_s=sum(step.num_samples for step in newest) / took if took > 0 else None,
        num_samples=progress.num_samples,
        num_tokens=progress.num_tokens,
        preemptions=progress.preemptions,
        failovers=progress.failovers,
        reconfigurations=progress.reconfigurations,
        restores=progress.restores,
        steps_rerun=progress.steps_rerun,
        pause_s=progress.pause_s,
        checkpoint_step=complete[-1] if complete else None,
        model_url=run.model_url or None,
        weights_sha256=run.weights_sha256 or None,
        reason=": ".join(part for part in (run.reason, run.detail) if part),
        checkpoint_steps=complete,
        checkpoint_trouble=checkpoints.trouble,
        recipe_sha256=run.spec.recipe_sha256 or None,
        begins_at_step=run.spec.begins_at_step,
        usual_step_s=progress.usual_step_s or None,
        last_commit_at=progress.last_commit_at,
        limit=_limit(run, progress, now),
    )


def _limit(run: Run, progress: Progress, now: float | None) -> str:
    used = most_used(run, progress, now) if now is not None and run.ended_at is None else None
    return "" if used is None else used.text
