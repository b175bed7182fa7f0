"""The life of a run. ``advance`` looks at what is so and does what follows, so the order of events does not matter."""

import math
from dataclasses import replace

from bamboo_cli.coordinator import (
    boundary,
    change,
    checkpoints,
    endings,
    handover,
    links,
    losses,
    plans,
    rungs,
    saving,
    workers,
)
from bamboo_cli.coordinator.board import Board
from bamboo_cli.coordinator.entities import Worker
from bamboo_cli.coordinator.events import StoryKind
from bamboo_cli.coordinator.roster import num_nodes
from bamboo_cli.coordinator.run_entities import Progress, Run
from bamboo_cli.coordinator.settings import RunSpec
from bamboo_cli.coordinator.states import RunReason, RunState, WorkerState
from bamboo_cli.coordinator.weather import hazard, num_accelerators, num_workers

STUCK_LEASES = 3
"""Leases that a member may take to stop before sterner means are used."""
STUCK_STEPS = 20
"""Usual steps that may pass without a commit, or without an agreement on a boundary."""
MIN_STUCK_S = 60.0
"""No less than this; the first steps may be slow, and it is not yet known what is usual."""


def begin(board: Board, spec: RunSpec) -> None:
    board.run = Run(spec=spec, since=board.now, started_at=board.now)
    board.progress = Progress(run_id=spec.run_id)
    board.cluster = replace(board.cluster, run_id=spec.run_id)
    for node in board.in_order():
        fresh = tuple(replace(each, num_crashes=0, restart_at=0.0) for each in node.accelerators)
        board.put(replace(node, accelerators=fresh))
    checkpoints.begin(board)
    text = f"run {spec.run_id} is accepted: {spec.training.num_steps} steps of {spec.training.recipe}"
    if spec.resumes is not None:
        text += f", from the checkpoint of step {spec.resumes.step} of run {spec.resumes.run_id}"
    board.tell(StoryKind.RUN, text)


# --- what follows from what is so -----------------------------------------------------------------------------------


def advance(board: Board) -> None:
    """After every event, until nothing more follows."""
    checkpoints.mark_whole_ones(board)
    while board.active_run is not None:
        before = board.run
        _ADVANCE[board.active_run.state](board, board.active_run)
        if board.run is before:
            return


def _starting(board: Board, run: Run) -> None:
    ready = board.staying(WorkerState.READY, WorkerState.PREPARED)
    if run.stop_requested:
        endings.stop(board, "before it began")
    elif board.checkpoints is not None and board.checkpoints.listed and _is_enough(board, run, ready):
        worker = ready[0]
        board.run = replace(run, profiler=worker.worker_id)
        board.put_worker(replace(worker, state=WorkerState.PREPARING, since=board.now))
        links.prepare(board, worker, profile=True)
        board.move_run(RunState.PROFILING)
        board.tell(StoryKind.RUN, f"{worker.worker_id} measures the layers")
    elif not boundary.may_have_enough(board):
        endings.give_up(board)


def _is_enough(board: Board, run: Run, ready: list[Worker]) -> bool:
    wanted = min(run.spec.num_hosts(num_workers(board)), num_workers(board))
    if len(ready) >= wanted:
        return True
    patient = board.now - run.started_at < board.config.patience_s
    return num_nodes(ready) >= max(1, run.spec.min_nodes) and not (patient and boundary.is_anybody_coming(board))


def _profiling(board: Board, run: Run) -> None:
    if run.stop_requested:
        endings.stop(board, "before it began")
    elif run.costs:
        spec, num_hosts = run.spec.training, run.spec.num_hosts(num_workers(board))
        if spec.checkpoint_every < 1:
            every = checkpoints.interval_steps(
                run.costs,
                num_stages=run.spec.num_stages or num_hosts,
                num_microbatches=spec.num_microbatches,
                hazard=hazard(board),
                num_nodes=math.ceil(num_hosts / num_accelerators(board)),
            )
            every = min(every, max(checkpoints.MIN_STEPS, spec.num_steps // checkpoints.LEAST))
            spec = replace(spec, checkpoint_every=every)
            board.tell(StoryKind.CHECKPOINT, f"a checkpoint every {every} steps", steps=every)
        board.run = replace(run, training=spec)
        board.move_run(RunState.PREPARING)
    elif run.profiler is None or not board.is_live(run.profiler):
        board.run = replace(run, profiler=None)
        board.move_run(RunState.STARTING)


def _preparing(board: Board, run: Run) -> None:
    if run.stop_requested:
        endings.stop(board, "before it began")
    elif not board.staying(WorkerState.READY, WorkerState.PREPARING):
        _plan_or_wait(board, run)


def _adopting(board: Board, run: Run) -> None:
    assert run.plan is not None
    live = board.live_members()
    if run.settled or (live and all(worker_id in run.adopted for worker_id in live)):
        board.run = replace(run, settled=True)
        if run.restoring is not None:
            boundary.restored(board)
        board.move_run(RunState.RUNNING)
    elif lost := plans.lost_members(board):
        plans.halt(board, f"lost {', '.join(lost)} before all had adopted plan {run.plan.generation}")


def _running(board: Board, run: Run) -> None:
    assert run.plan is not None
    if lost := plans.lost_members(board):
        names = ", ".join(lost)
        if rungs.is_rerun_cheaper(board, lost):
            plans.halt(board, f"lost {names}; the step is run again, which is cheaper than to take it over")
        elif not plans.try_fail_over(board, lost):
            plans.halt(board, f"lost {names} and a stage with them")
    elif _is_complete(board, run):
        board.move_run(RunState.FINISHING)
    elif idle := [w for w in run.plan.worker_ids() if not run.plan.layers_of(w)]:
        plans.try_fail_over(board, idle)  # they only handed layers over, and all have what they need
    elif run.stop_requested:
        plans.quiesce(board, run.over_budget or "stop requested")
    elif _is_stuck(board, run):
        _break_free(board, run)
    else:
        saving.while_in_danger(board, run)
        _change_in_time(board, run)


def _is_stuck(board: Board, run: Run) -> bool:
    """Everybody beats and every link is up, yet no step is committed: somebody's computation hangs."""
    assert board.progress is not None
    quiet_s = board.now - max(run.since, board.pulse.moved_at)
    return bool(board.progress.step_seconds) and quiet_s > _stuck_s(board)


def _break_free(board: Board, run: Run) -> None:
    """Who hangs does not stop when told to, and is fenced. The plan after that begins behind the last commit."""
    step = board.progress.committed_step + 1 if board.progress else 0
    why = f"step {step} was not committed within {_stuck_s(board):.0f} s"
    if end_reason := workers.crashed_in_training(board, why):
        endings.fail(board, RunReason.WORKER_CRASHES, end_reason)
    else:
        plans.halt(board, why)


def _change_in_time(board: Board, run: Run) -> None:
    found = change.why_change(board)
    if found is None:
        if run.change_since is not None or run.handover is not None:
            board.run = replace(run, change_since=None, handover=None)
        return
    reason, delay_s = found
    since = board.now if run.change_since is None else run.change_since
    if board.now - since >= delay_s and handover.is_ready(board, reason):
        plans.quiesce(board, reason)
        return
    assert board.run is not None
    if board.run.change_since is None:
        board.run = replace(board.run, change_since=since)


def _quiescing(board: Board, run: Run) -> None:
    assert run.plan is not None and run.pause is not None
    if _is_complete(board, run):
        board.run = replace(run, pause=None)
        board.move_run(RunState.FINISHING)
    elif not plans.awaited(board):
        _all_stopped(board, run)
    elif lost := plans.lost_members(board):
        if plans.try_fail_over(board, lost):
            plans.quiesce_again(board, run.pause.reason)
        else:
            plans.halt(board, f"lost {', '.join(lost)} while stopping")
    elif board.now - run.pause.since > _stuck_s(board):
        plans.halt(board, "no boundary was agreed on in time")


def _stuck_s(board: Board) -> float:
    assert board.progress is not None
    usual_s = board.progress.usual_step_s
    return max(STUCK_LEASES * board.config.lease_s, STUCK_STEPS * usual_s, MIN_STUCK_S)


def _halting(board: Board, run: Run) -> None:
    assert run.pause is not None and board.progress is not None
    awaited = plans.awaited(board)
    patience_s = STUCK_LEASES * board.config.lease_s + 2 * board.progress.usual_step_s
    if not awaited:
        _all_stopped(board, run)
    elif board.now - run.pause.since > patience_s:
        for worker_id in awaited:
            worker = board.worker_of(worker_id)
            assert worker is not None
            losses.lose_worker(board, worker, f"it did not stop within {patience_s:.0f} s", fence=True)
        board.run = replace(run)  # awaited has changed: look again


def _all_stopped(board: Board, run: Run) -> None:
    if run.stop_requested:
        if saving.is_saved(board, run):
            endings.stop(board)
    else:
        _plan_or_wait(board, run)


def _waiting(board: Board, run: Run) -> None:
    if run.stop_requested:
        endings.stop(board, "while it waited for nodes")
    elif _is_early(board):
        return
    elif boundary.may_plan(board):
        boundary.plan_next(board)
    elif not boundary.may_have_enough(board):
        endings.give_up(board)


def _plan_or_wait(board: Board, run: Run) -> None:
    if _is_early(board):
        return
    if boundary.may_plan(board):
        boundary.plan_next(board)
    elif not boundary.may_have_enough(board):
        endings.give_up(board)
    else:
        board.move_run(RunState.WAITING)
        there = num_nodes(board.staying(*WorkerState))
        text = f"the run waits for nodes: {max(1, run.spec.min_nodes)} needed, {there} there"
        board.tell(StoryKind.WAIT, text, num_there=there)


def _is_early(board: Board) -> bool:
    """In a moment there is more to plan with: a checkpoint is about to become the newest, or a node to be whole."""
    marker_is_due = board.checkpoints is not None and bool(board.checkpoints.marking) and board.run is not None
    return marker_is_due or boundary.is_node_half_there(board)


_ADVANCE = {
    RunState.STARTING: _starting,
    RunState.PROFILING: _profiling,
    RunState.PREPARING: _preparing,
    RunState.ADOPTING: _adopting,
    RunState.RUNNING: _running,
    RunState.QUIESCING: _quiescing,
    RunState.HALTING: _halting,
    RunState.WAITING: _waiting,
    RunState.FINISHING: endings.finish,
}


def _is_complete(board: Board, run: Run) -> bool:
    assert board.progress is not None
    return bool(run.complete) or board.progress.committed_step >= run.spec.training.num_steps - 1
