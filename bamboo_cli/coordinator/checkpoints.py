"""Which checkpoints of the run there are, when one is whole, and how often to make one."""

import math
from dataclasses import replace

from bamboo_trainer.control import CheckpointFailed, LayerCost, LayerSaved

from bamboo_cli.coordinator.board import Board
from bamboo_cli.coordinator.events import ListCheckpoints, MarkCheckpoint, PruneCheckpoints, StoryKind
from bamboo_cli.coordinator.run_entities import Checkpoints

DISK_BYTES_PER_S = 200e6
SAVE_OVERHEAD_S = 0.05
"""Copying and closing files; what a checkpoint costs at least."""
LAST_TRIES = 6
"""To write the checkpoint of the last step, which all nodes hold: with pauses that double from 1 s, half a minute."""
MIN_STEPS, MAX_STEPS = 10, 500
LEAST = 4
"""In a run, however calm it is expected to be."""
MIN_INTERVAL_S, MAX_INTERVAL_S = 5.0, 900.0


def begin(board: Board) -> None:
    """A run begins: ask what there is already."""
    assert board.run is not None
    board.checkpoints = Checkpoints(run_id=board.run.run_id)
    ask_again(board)


def ask_again(board: Board) -> None:
    """After a restart: what was asked may not have been done."""
    run, known = board.active_run, board.checkpoints
    if run is None or known is None:
        return
    url = run.spec.training.checkpoint_url
    if not known.listed:
        board.out.append(ListCheckpoints(run_id=run.run_id, url=url, resumes=run.spec.resumes))
    for step in known.marking:
        board.out.append(MarkCheckpoint(run_id=run.run_id, url=url, step=step, entries=_entries(known, step)))


def listed(board: Board, run_id: str, steps: tuple[int, ...]) -> bool:
    """Whether the run has to fail: what it was to go on from is not there."""
    run, known = board.active_run, board.checkpoints
    if run is None or known is None or known.run_id != run_id or known.listed:
        return False
    board.checkpoints = replace(known, listed=True, trouble="", complete=tuple(sorted(steps)))
    return run.spec.begins_at_step > 0 and not steps


def not_listed(board: Board, run_id: str, detail: str) -> None:
    """Told once. Without knowing them the run does not begin: there may be one to go on from."""
    known = board.checkpoints
    if board.active_run is None or known is None or known.run_id != run_id or known.listed or known.trouble:
        return
    board.checkpoints = replace(known, trouble=f"cannot list the checkpoints in {detail}")
    board.tell(StoryKind.CHECKPOINT, f"cannot list the checkpoints in {detail}; trying again until it can be done")


def newest(board: Board) -> int | None:
    """The step of the newest complete one."""
    return max(board.checkpoints.complete, default=None) if board.checkpoints is not None else None


def is_durable(board: Board, step: int) -> bool:
    """All layer files are there, and the marker is there or being written."""
    known = board.checkpoints
    return known is not None and step in (*known.complete, *known.marking)


def layer_saved(board: Board, message: LayerSaved) -> None:
    """Saved again by another worker: the same bits in the same file; the later word counts."""
    known, step = board.checkpoints, message.checkpoint_step
    if board.active_run is None or known is None or is_durable(board, step) or step in known.unreadable:
        return
    others = tuple(s for s in known.saved if (s.checkpoint_step, s.layer) != (step, message.layer))
    board.checkpoints = replace(known, saved=(*others, message))


def mark_whole_ones(board: Board) -> None:
    """After every event. Not before the step is known to be committed: a restore must never go forward."""
    run, known, progress = board.active_run, board.checkpoints, board.progress
    if run is None or known is None or progress is None or not run.costs:
        return
    for step in sorted({saved.checkpoint_step for saved in known.saved} - set(known.marking)):
        entries = _entries(known, step)
        if len(entries) == len(run.costs) and (step <= progress.committed_step or run.complete):
            known = board.checkpoints = replace(known, marking=(*known.marking, step))
            url = run.spec.training.checkpoint_url
            board.out.append(MarkCheckpoint(run_id=run.run_id, url=url, step=step, entries=entries))


def _entries(known: Checkpoints, step: int) -> tuple[LayerSaved, ...]:
    return tuple(sorted((s for s in known.saved if s.checkpoint_step == step), key=lambda s: s.layer))


def marked(board: Board, run_id: str, step: int) -> None:
    run, known = board.run, board.checkpoints
    if run is None or known is None or known.run_id != run_id or step not in known.marking:
        return
    num_bytes = sum(saved.num_bytes for saved in _entries(known, step))
    complete = tuple(sorted({*known.complete, step}))
    kept = complete[-max(1, run.spec.checkpoints_kept) :]
    board.checkpoints = replace(
        known,
        complete=kept,
        marking=tuple(s for s in known.marking if s != step),
        saved=tuple(s for s in known.saved if s.checkpoint_step > step),
    )
    board.tell(StoryKind.CHECKPOINT, f"the checkpoint of step {step} is complete", step=step, num_bytes=num_bytes)
    if kept != complete:
        url = run.spec.training.checkpoint_url
        board.out.append(PruneCheckpoints(run_id=run_id, url=url, kept=kept))


def failed(board: Board, step: int, detail: str) -> bool:
    """Whether the run has to fail: it was the last one, and has been tried ``LAST_TRIES`` times."""
    run, known = board.active_run, board.checkpoints
    if run is None or known is None or step in known.complete:
        return False
    board.checkpoints = replace(
        known,
        marking=tuple(s for s in known.marking if s != step),
        saved=tuple(s for s in known.saved if s.checkpoint_step != step),
        last_failed=step,
    )
    if step == run.spec.training.num_steps - 1:
        return known.retry_at is None and _last_failed(board, step, detail)
    if step != known.last_failed:  # once, however many layers it was
        others = f"the newest is that of step {max(known.complete)}" if known.complete else "there is none yet"
        text = f"no checkpoint of step {step}: {detail}; training goes on, {others}"
        board.tell(StoryKind.CHECKPOINT, text, step=step)
    return False


def _last_failed(board: Board, step: int, detail: str) -> bool:
    known = board.checkpoints
    assert known is not None
    tries, delay_s = known.last_tries + 1, 2.0**known.last_tries
    gives_up = tries == LAST_TRIES
    then = f"after {tries} tries" if gives_up else f"next try in {delay_s:.0f} s"
    board.checkpoints = replace(known, last_tries=tries, retry_at=None if gives_up else board.now + delay_s)
    board.tell(StoryKind.CHECKPOINT, f"no checkpoint of the last step, {step}: {detail}; {then}", step=step)
    return gives_up


def is_retry_due(board: Board) -> bool:
    known = board.checkpoints
    return known is not None and known.retry_at is not None and known.retry_at <= board.now


def retried(board: Board) -> None:
    """All members save the last step again: what they saved of it before does not count."""
    run, known = board.run, board.checkpoints
    assert run is not None and known is not None
    saved = tuple(s for s in known.saved if s.checkpoint_step < run.spec.training.num_steps - 1)
    board.checkpoints = replace(known, saved=saved, retry_at=None)


def layer_failed(board: Board, message: CheckpointFailed) -> bool:
    return failed(board, message.checkpoint_step, f"layer {message.layer}: {message.detail}")


def unreadable(board: Board, step: int) -> None:
    known = board.checkpoints
    assert known is not None
    complete = tuple(s for s in known.complete if s != step)
    board.checkpoints = replace(known, complete=complete, unreadable=(*known.unreadable, step))


def forget_after(board: Board, step: int) -> None:
    """Steps after this one are run again: what was saved of them is saved again."""
    if board.checkpoints is not None:
        kept = tuple(s for s in board.checkpoints.saved if s.checkpoint_step <= step)
        board.checkpoints = replace(board.checkpoints, saved=kept, last_tries=0, retry_at=None)


def interval_steps(
    costs: tuple[LayerCost, ...], *, num_stages: int, num_microbatches: int, hazard: float, num_nodes: int
) -> int:
    """``auto``: sqrt(2 x cost of a checkpoint x mean time between losses), in steps (Young 1974; Daly 2006), bounded.

    The cost is estimated from the bytes of the layers' states. ``hazard``: losses per node and hour.
    """
    save_s = SAVE_OVERHEAD_S + sum(cost.state_bytes for cost in costs) / DISK_BYTES_PER_S
    between_losses_s = 3600.0 / hazard / max(1, num_nodes)
    interval_s = min(MAX_INTERVAL_S, max(MIN_INTERVAL_S, math.sqrt(2 * save_s * between_losses_s)))
    busy_s = sum(cost.forward_s + cost.backward_s for cost in costs) / max(1, min(num_stages, len(costs)))
    step_s = max(1e-4, busy_s * num_microbatches)
    return min(MAX_STEPS, max(MIN_STEPS, round(interval_s / step_s)))
