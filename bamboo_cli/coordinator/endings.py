"""How a run ends: the last checkpoint and the model are written, or it stops or fails with a reason."""

import math
from dataclasses import replace

from bamboo_cli.coordinator import boundary, checkpoints, links, plans, progress, workers
from bamboo_cli.coordinator.board import Board
from bamboo_cli.coordinator.events import StoryKind
from bamboo_cli.coordinator.run_entities import Run
from bamboo_cli.coordinator.states import RunReason, RunState, WorkerState


def end(board: Board, state: RunState, reason: RunReason, detail: str) -> None:
    """Workers are stopped. Which checkpoint is the newest is left to who asks: a marker may still be on its way."""
    assert board.run is not None
    why = detail or reason
    board.tell(StoryKind.RUN, f"run {board.run.run_id} is {state}{f': {why}' if why else ''}")
    board.move_run(state)
    board.run = replace(
        board.run, reason=reason, detail=detail, ended_at=board.now, pause=None, change_since=None, broken=()
    )
    workers.stop_all(board, f"run {board.run.run_id} is {state}")


def stop(board: Board, detail: str = "") -> None:
    """As was asked for, or because a limit of the job is reached."""
    run = board.active_run
    if run is not None:
        reason = RunReason.BUDGET if run.over_budget else RunReason.REQUESTED
        end(board, RunState.STOPPED, reason, ", ".join(part for part in (run.over_budget, detail) if part))


def fail(board: Board, reason: RunReason, detail: str) -> None:
    if board.active_run is not None:
        end(board, RunState.FAILED, reason, detail)


def without_last_checkpoint(board: Board, detail: str) -> None:
    """It was tried often enough. All steps are committed, whether or not somebody lived to tell."""
    if board.active_run is not None:
        progress.count_all(board)
        why = f"the last checkpoint could not be written in {checkpoints.LAST_TRIES} tries: {detail}"
        fail(board, RunReason.CHECKPOINT_UNWRITABLE, why)


def give_up(board: Board) -> None:
    """Nobody will ever come, so nothing is waited for."""
    assert board.run is not None
    left, needed = boundary.num_hoped_for(board), max(1, board.run.spec.min_nodes)
    why = board.cluster.gave_up or (
        "none will come, since the job says `local.replace: false`; with `true`, nodes that go are replaced"
    )
    fail(board, RunReason.NO_NODES, f"{left} left of at least {needed} needed, and {why}")


def finish(board: Board, run: Run) -> None:
    assert run.plan is not None
    last = run.spec.training.num_steps - 1
    if board.checkpoints is not None and last in board.checkpoints.complete:
        if run.model_writer is None or not board.is_live(run.model_writer):
            _choose_writer(board, run)
    elif checkpoints.is_durable(board, last):
        return
    elif lost := plans.lost_members(board):
        # After a failover the members save the last step again, and so all that the victim had not saved.
        if not plans.try_fail_over(board, lost):
            plans.halt(board, f"lost {', '.join(lost)} before the last checkpoint was complete")
    elif checkpoints.is_retry_due(board):
        checkpoints.retried(board)
        plans.save_again(board)


def _choose_writer(board: Board, run: Run) -> None:
    """One that stays, else whichever of those that are leaving has the most time left."""
    workers_by_end = sorted(
        (math.inf if not n.leaving else n.deadline or board.now, -n.number, -worker.accelerator, worker.worker_id)
        for n in board.nodes.values()
        for worker in n.workers
        if worker.state is WorkerState.PREPARED
    )
    if not workers_by_end and not boundary.may_have_enough(board):
        give_up(board)
        return
    writer = workers_by_end[-1][-1] if workers_by_end else None
    if writer != run.model_writer:
        board.run = replace(run, model_writer=writer)
        if writer is not None:
            links.write_model(board)
