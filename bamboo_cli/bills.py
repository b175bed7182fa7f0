"""Bills from state files."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from bamboo_cli.coordinator.money import ALL_TIME, ClusterMoney, Period
from bamboo_cli.coordinator.reader import read_money
from bamboo_cli.coordinator.status import RunStatus
from bamboo_cli.costs.report import Bill, RunBill, RunFacts, bill
from bamboo_cli.errors import StateError

HOURS_A_MONTH = 730.0
GP3_MICROUSD_PER_GB_MONTH = 80_000
"""$0.08, of EC2's us-east-1 on 2026-11-30; other regions are up to a third dearer."""


def read_bill(path: Path, *, now: float) -> Bill:
    """Up to ``now``, seconds since the epoch. Raises StateError."""
    return bill_of([read_money(path, now=now)], now=now)


def readable(paths: Iterable[Path], damaged: list[StateError], *, now: float, period: Period) -> Iterator[ClusterMoney]:
    """Adds to ``damaged`` what is wrong with the others."""
    for path in paths:
        try:
            yield read_money(path, now=now, period=period)
        except StateError as error:
            damaged.append(error)


def bill_of(
    clusters: Iterable[ClusterMoney], *, now: float, period: Period = ALL_TIME, most_nodes: int | None = None
) -> Bill:
    """Of several, which may be of one name. ``most_nodes``: as ``costs.report.bill``."""
    listed = list(clusters)
    facts = (_facts(run, money, period, now) for money in listed for run in money.runs)
    return bill(
        tuple(charge for money in listed for charge in money.charges),
        [fact for fact in facts if fact is not None],
        microusd_per_hour=sum(money.microusd_per_hour for money in listed),
        most_nodes=most_nodes,
        disk_microusd=sum(map(_disk_microusd, listed)),
    )


def read_run_bill(path: Path, run_id: str, *, now: float) -> RunBill:
    """Raises StateError."""
    return next(run for run in read_bill(path, now=now).runs if run.run_id == run_id)


def _facts(run: RunStatus, money: ClusterMoney, period: Period, now: float) -> RunFacts | None:
    """None: nothing of the run lies in the period. Of a run that lies there in part, pauses and steps that were run
    again are not known, nor is what the rest of it will cost."""
    ended_at = now if run.ended_at is None else run.ended_at
    if not period.holds_some_of(run.started_at, ended_at):
        return None
    is_whole = period.holds(run.started_at, ended_at)
    committed = max(0, run.committed_steps - run.begins_at_step), run.num_samples, run.num_tokens
    num_steps, num_samples, num_tokens = committed if is_whole else money.committed[run.run_id]
    crossing_share = num_steps / committed[0] if committed[0] else 0.0
    return RunFacts(
        run_id=run.run_id,
        cluster_id=money.cluster_id,
        num_steps=num_steps,
        num_samples=num_samples,
        num_tokens=num_tokens,
        wall_s=ended_at - run.started_at,
        pause_s=run.pause_s if is_whole else 0.0,
        steps_rerun=run.steps_rerun if is_whole else 0,
        usual_step_s=money.usual_step_s[run.run_id],
        placings=money.placings.get(run.run_id, ()),
        crossing_bytes=round(money.crossing_bytes.get(run.run_id, 0) * crossing_share),
        steps_left=run.num_steps - run.committed_steps if is_whole and run.ended_at is None else 0,
    )


def _disk_microusd(money: ClusterMoney) -> float:
    gigabytes = (money.job.get("aws") or {}).get("volume_gb", 0) if money.cloud == "aws" else 0
    hours = sum(charge.seconds for charge in money.charges) / 3600.0
    return float(gigabytes * hours / HOURS_A_MONTH * GP3_MICROUSD_PER_GB_MONTH)
