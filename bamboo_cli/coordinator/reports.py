"""What workers say about plans, the end of the run and their failures, noted on the board."""

from dataclasses import replace

from bamboo_trainer.control import Adopted, DigestMismatch, Fault, ModelWritten, Recorded, RunComplete, WorkerFailed
from bamboo_trainer.plan import PlanKind, WorkerId

from bamboo_cli.coordinator import checkpoints, endings, plans, progress
from bamboo_cli.coordinator.board import Board
from bamboo_cli.coordinator.events import KeepPage, StoryKind
from bamboo_cli.coordinator.run_entities import Distrusted
from bamboo_cli.coordinator.states import UNDER_PLAN, RunReason, RunState

_FAULTS = {
    Fault.RECIPE: RunReason.RECIPE,
    Fault.LOSS_NOT_FINITE: RunReason.LOSS_NOT_FINITE,
    Fault.CHECKPOINT_UNREADABLE: RunReason.CHECKPOINT_UNREADABLE,
    Fault.DEVICE: RunReason.DEVICE,
    Fault.OUT_OF_MEMORY: RunReason.OUT_OF_MEMORY,
    Fault.BUG: RunReason.BUG,
}


def adopted(board: Board, worker_id: WorkerId, message: Adopted) -> None:
    run = board.active_run
    if run is None or run.plan is None or message.generation != run.plan.generation:
        progress.stale(board)
    elif worker_id in run.plan.worker_ids() and worker_id not in run.adopted:
        board.run = replace(run, adopted=(*run.adopted, worker_id))


def run_complete(board: Board, worker_id: WorkerId, message: RunComplete) -> None:
    run = board.active_run
    if run is None or run.plan is None or message.generation < run.base_generation:
        progress.stale(board)
    elif worker_id in run.plan.worker_ids() and worker_id not in run.complete:
        board.run = replace(run, complete=(*run.complete, worker_id))


def digest_mismatch(board: Board, worker_id: WorkerId, message: DigestMismatch) -> None:
    run = board.active_run
    if run is None or run.plan is None or message.generation < run.base_generation:
        progress.stale(board)
        return
    copy = Distrusted(worker_id=worker_id, layer=message.layer)
    if copy not in run.distrusted:
        board.run = replace(run, distrusted=(*run.distrusted, copy))
        text = f"the copy of layer {message.layer} on {worker_id} differs from its owner's after step {message.step}"
        board.tell(StoryKind.DIGEST, text, step=message.step, layer=message.layer)


def recorded(board: Board, worker_id: WorkerId, page: Recorded) -> None:
    """Also of a run that has just ended: its last pages come after it."""
    if board.run is not None and board.run.run_id == page.run_id:
        board.out.append(KeepPage(worker_id=worker_id, page=page))


def model_written(board: Board, worker_id: WorkerId, message: ModelWritten) -> None:
    run = board.active_run
    if run is None or run.state is not RunState.FINISHING or worker_id != run.model_writer:
        return
    progress.count_all(board)
    board.run = replace(
        run, model_url=message.url, num_parameters=message.num_parameters, weights_sha256=message.weights_sha256
    )
    endings.end(board, RunState.DONE, RunReason.NONE, "")


def worker_failed(board: Board, worker_id: WorkerId, message: WorkerFailed) -> None:
    """Nothing that another try would mend ends the run; but an unreadable checkpoint sends it to an older one."""
    run = board.active_run
    if run is None:
        return
    plan = run.plan
    at_restore = (
        message.fault == Fault.CHECKPOINT_UNREADABLE
        and plan is not None
        and plan.kind is PlanKind.BOUNDARY
        and plan.checkpoint_step is not None
        and run.model_writer is None
    )
    if not at_restore:
        endings.fail(board, _FAULTS[message.fault], f"{worker_id}: {message.detail}")
        return
    assert plan is not None and plan.checkpoint_step is not None and board.checkpoints is not None
    if plan.checkpoint_step not in board.checkpoints.complete:
        return  # another member has said so already
    checkpoints.unreadable(board, plan.checkpoint_step)
    board.tell(StoryKind.CHECKPOINT, f"{worker_id}: {message.detail}", step=plan.checkpoint_step)
    if run.state in UNDER_PLAN and run.state is not RunState.HALTING:
        plans.halt(board, f"the checkpoint of step {plan.checkpoint_step} cannot be read")
