"""What a run may cost and how long it may take: said at four fifths, and at the end it stops in order. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from bamboo_cli.coordinator.board import Board
from bamboo_cli.coordinator.events import SpentSoFar, StoryKind
from bamboo_cli.coordinator.run_entities import Progress, Run
from bamboo_cli.coordinator.states import RunState

WARN_SHARE = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    share: float
    text: str


def heard(board: Board, event: SpentSoFar) -> None:
    if board.progress is not None and board.progress.run_id == event.run_id:
        board.progress = replace(board.progress, spent_microusd=event.microusd)


def watch(board: Board) -> None:
    """After every event. A run that has done all its steps only has to write them down."""
    run, progress = board.active_run, board.progress
    if run is None or progress is None or run.stop_requested or run.state is RunState.FINISHING:
        return
    used = most_used(run, progress, board.now)
    if used is None or used.share < WARN_SHARE:
        return
    if used.share >= 1.0:
        board.run = replace(run, stop_requested=True, over_budget=used.text)
        board.tell(StoryKind.BUDGET, f"{used.text}: run {run.run_id} is to stop at the next boundary", share=used.share)
    elif not run.budget_told:
        board.run = replace(run, budget_told=True)
        board.tell(StoryKind.BUDGET, f"{used.text}: run {run.run_id} will be stopped at all of it", share=used.share)


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
