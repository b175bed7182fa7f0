"""The bill of a cluster from its state file."""

from pathlib import Path

from bamboo_cli.coordinator.reader import read_charges, read_runs
from bamboo_cli.coordinator.status import RunStatus
from bamboo_cli.costs.report import Bill, RunBill, RunFacts, bill


def read_bill(path: Path, *, now: float) -> Bill:
    """Up to ``now``, seconds since the epoch. Raises StateError."""
    return bill(read_charges(path, now=now), [_facts(run, now) for run in read_runs(path)])


def read_run_bill(path: Path, run_id: str, *, now: float) -> RunBill:
    """Raises StateError."""
    return next(run for run in read_bill(path, now=now).runs if run.run_id == run_id)


def _facts(run: RunStatus, now: float) -> RunFacts:
    ended_at = now if run.ended_at is None else run.ended_at
    return RunFacts(
        run_id=run.run_id,
        num_steps=max(0, run.committed_steps - run.begins_at_step),
        num_samples=run.num_samples,
        num_tokens=run.num_tokens,
        wall_s=ended_at - run.started_at,
        pause_s=run.pause_s,
        steps_rerun=run.steps_rerun,
    )
