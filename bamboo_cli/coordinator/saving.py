"""Checkpoints out of turn: while layers are about to lose all their holders, and before a run stops."""

import math
from dataclasses import replace

from bamboo_trainer.control import Save
from bamboo_trainer.plan import WorkerId, node_id_of

from bamboo_cli.coordinator import checkpoints
from bamboo_cli.coordinator.board import Board
from bamboo_cli.coordinator.events import StoryKind
from bamboo_cli.coordinator.run_entities import Asked, Checkpoints, Run
from bamboo_cli.coordinator.weather import hazard

AHEAD_S = 0.5
"""The step to be saved is so far ahead that all hear of it in time; at least ``AHEAD_STEPS``, since a member may be one
step beyond what is known."""
AHEAD_STEPS = 2
AGAIN_S = 5.0
"""Between two of them."""
LAST_S = 60.0
"""How long a stop waits for its checkpoint."""


def while_in_danger(board: Board, run: Run) -> None:
    """Somebody may come in time to take the layers over, or nobody: what is saved is safe. The same where any loss goes
    back to a checkpoint, and losses have become more frequent than was expected when its interval was chosen."""
    known, made = board.checkpoints, board.progress
    assert run.plan is not None and known is not None and made is not None
    layers = _only_on_leaving(board, run)
    if not (layers or _is_overdue(board, run)) or not _may_ask(known, run.plan.generation, board.now):
        return
    usual_s = made.usual_step_s
    step = made.committed_step + max(AHEAD_STEPS, math.ceil(AHEAD_S / usual_s) if usual_s else 0)
    if step >= run.spec.training.num_steps - 1:
        return  # the last one is saved anyway
    which = f"layer {layers[0]}" if len(layers) == 1 else f"{len(layers)} layers"
    why = f"all that hold {which} are leaving" if layers else "nodes are lost more often than was expected"
    board.tell(StoryKind.CHECKPOINT, f"{why}: a checkpoint of step {step}", step=step)
    _ask(board, run, step)


def is_saved(board: Board, run: Run) -> bool:
    """Before a stop, all members standing at one boundary: whether that step is saved, or cannot be."""
    known, made = board.checkpoints, board.progress
    assert known is not None and made is not None and run.plan is not None and run.pause is not None
    steps = {stop.stopped.committed_step for stop in run.pause.stops}
    step = made.committed_step
    stand_together = steps == {step} and len(board.live_members()) == len(run.plan.worker_ids())
    if step in known.complete or step < 0 or not stand_together or run.pause.generation != run.plan.generation:
        return True
    asked = known.asked
    if asked is None or asked.step != step:
        board.tell(StoryKind.CHECKPOINT, f"a checkpoint of step {step}, before the run stops", step=step)
        _ask(board, run, step)
        return False
    return known.last_failed == step or board.now - asked.at > LAST_S


def say_again(board: Board, worker_id: WorkerId) -> None:
    """To a worker whose agent has come back: whoever asked may have been killed before it was told."""
    known, run = board.checkpoints, board.active_run
    asked = known.asked if known is not None else None
    if known is None or run is None or run.plan is None or asked is None or asked.step in known.complete:
        return
    if asked.generation == run.plan.generation:
        board.tell_worker(worker_id, Save(generation=asked.generation, step=asked.step))


def _may_ask(known: Checkpoints, generation: int, now: float) -> bool:
    """Not while one is being written. Another plan may have other hosts, of which some know of nothing."""
    asked = known.asked
    if asked is None:
        return True
    is_over = asked.step in (*known.complete, known.last_failed) or asked.generation != generation
    return now - asked.at > (AGAIN_S if is_over else LAST_S)


def _ask(board: Board, run: Run, step: int) -> None:
    assert run.plan is not None and board.checkpoints is not None
    asked = Asked(step=step, generation=run.plan.generation, at=board.now)
    board.checkpoints = replace(board.checkpoints, asked=asked)
    for worker_id in board.live_members():
        board.tell_worker(worker_id, Save(generation=asked.generation, step=step))


def _is_overdue(board: Board, run: Run) -> bool:
    """``auto``, by the hazard as it is now, in a plan in which some layer has a single holder."""
    plan, made = run.plan, board.progress
    assert plan is not None and made is not None
    if run.spec.training.checkpoint_every >= 1 or all(len(plan.holders_of(x)) > 1 for x in range(plan.num_layers)):
        return False
    every = checkpoints.interval_steps(
        run.costs,
        num_stages=len(plan.pipelines[0].stages),
        num_microbatches=run.spec.training.num_microbatches,
        hazard=hazard(board),
        num_nodes=len({node_id_of(stage.host) for stage in plan.stages()}),
    )
    if run.training is None or every > run.training.checkpoint_every // 2:
        return False
    newest = checkpoints.newest(board)
    return made.committed_step - (-1 if newest is None else newest) >= every


def _only_on_leaving(board: Board, run: Run) -> tuple[int, ...]:
    """Layers whose every holder is under notice."""
    assert run.plan is not None
    noticed = [node for node in board.nodes.values() if node.leaving and node.deadline is not None]
    leaving = {worker.worker_id for node in noticed for worker in node.workers}
    return tuple(x for x in range(run.plan.num_layers) if set(run.plan.holders_of(x)) <= leaving)
