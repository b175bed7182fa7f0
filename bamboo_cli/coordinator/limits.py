"""How much a run has used of what it may cost and how long it may take. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

from bamboo_cli.coordinator.run_entities import Progress, Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    share: float
    text: str


def most_used(run: Run, progress: Progress, now: float) -> Used | None:
    """Of the limits that the job has, the one that is nearest. None: it has none."""
    return max(_all_used(run, progress, now), key=lambda used: used.share, default=None)


def _all_used(run: Run, progress: Progress, now: float) -> Iterator[Used]:
    budget, passed_s = run.spec.budget, now - run.started_at
    if budget.max_microusd is not None:
        share = progress.spent_microusd / budget.max_microusd
        yield Used(share=share, text=f"{share:.0%} of `max_cost_usd` {budget.max_microusd / 1e6:g} is spent")
    if budget.max_s is not None:
        share = passed_s / budget.max_s
        yield Used(share=share, text=f"{share:.0%} of `max_hours` {budget.max_s / 3600:g} is over")
    if budget.deadline is not None:
        whole_s = budget.deadline - run.started_at
        share = passed_s / whole_s if whole_s > 0 else 1.0
        yield Used(share=share, text=f"{share:.0%} of the time to the `deadline` is over")
