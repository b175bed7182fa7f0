"""What a run may cost and how long it may take: said at four fifths, and at the end it stops in order. Pure."""

from dataclasses import replace

from bamboo_cli.coordinator.board import Board
from bamboo_cli.coordinator.events import SpentSoFar, StoryKind
from bamboo_cli.coordinator.limits import most_used
from bamboo_cli.coordinator.states import RunState

WARN_SHARE = 0.8


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
