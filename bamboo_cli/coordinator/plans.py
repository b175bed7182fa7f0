"""Plans in force: stopping their members, failing over, telling the members. docs/coordinator.md."""

from dataclasses import replace

from bamboo_trainer.arrangement import arrangement_of
from bamboo_trainer.control import Adopt, Stopped
from bamboo_trainer.helping import MAX_APART, with_help
from bamboo_trainer.memory import help_that_fits
from bamboo_trainer.plan import Plan, StagePlan, WorkerId
from bamboo_trainer.redundancy import fail_over

from bamboo_cli.coordinator import links, progress
from bamboo_cli.coordinator.board import Board
from bamboo_cli.coordinator.events import StoryKind
from bamboo_cli.coordinator.run_entities import Pause, Run, Stop
from bamboo_cli.coordinator.states import PauseKind, RunState
from bamboo_cli.coordinator.weather import memory_bytes

# --- stopping ---------------------------------------------------------------------------------------------------


def quiesce(board: Board, reason: str) -> None:
    """All members stop at the next boundary that they agree on."""
    assert board.run is not None and board.run.plan is not None
    _pause(board, PauseKind.QUIESCE, board.run.plan.generation, reason)
    board.move_run(RunState.QUIESCING)


def quiesce_again(board: Board, reason: str) -> None:
    """After a failover while stopping: those that had stopped go on, and stop at the next boundary with the others."""
    assert board.run is not None and board.run.plan is not None
    _pause(board, PauseKind.QUIESCE, board.run.plan.generation, reason)


def halt(board: Board, reason: str) -> None:
    """All members stop at once and say what they hold. A generation of its own, so older frames are refused."""
    _pause(board, PauseKind.HALT, board.next_generation(), reason)
    board.move_run(RunState.HALTING)
    board.tell(StoryKind.RUN, f"everybody halts: {reason}")


def _pause(board: Board, kind: PauseKind, generation: int, reason: str) -> None:
    assert board.run is not None
    pause = Pause(kind=kind, generation=generation, since=board.now, reason=reason)
    board.run = replace(board.run, pause=pause, change_since=None)
    progress.disturbed(board)
    for worker_id in board.live_members():
        board.tell_worker(worker_id, links.pause_message(kind, generation))


def stopped(board: Board, worker_id: WorkerId, message: Stopped) -> None:
    run = board.active_run
    if run is None or run.pause is None or run.plan is None or message.generation != run.pause.generation:
        progress.stale(board)
        return
    if worker_id in run.plan.worker_ids():
        others = tuple(stop for stop in run.pause.stops if stop.worker_id != worker_id)
        stops = (*others, Stop(worker_id=worker_id, stopped=message))
        board.run = replace(run, pause=replace(run.pause, stops=stops))


def awaited(board: Board) -> list[WorkerId]:
    """Members that were told to stop, live, and have not said that they did."""
    assert board.run is not None and board.run.pause is not None
    answered = {stop.worker_id for stop in board.run.pause.stops}
    return [w for w in board.live_members() if w not in answered]


def lost_members(board: Board) -> list[WorkerId]:
    assert board.run is not None and board.run.plan is not None
    return [w for w in board.run.plan.worker_ids() if not board.is_live(w)]


# --- failover ---------------------------------------------------------------------------------------------------


def try_fail_over(board: Board, lost: list[WorkerId]) -> bool:
    """The plan without ``lost``, in mid-step; False when the members do not hold enough for that."""
    run = board.run
    assert run is not None and run.plan is not None
    if not run.settled:
        return False
    before = _without_distrusted(run.plan, run)
    plan = fail_over(before, lost, board.cluster.generation + 1)
    if plan is None:
        return False
    plan = with_help(plan, before, lambda worker_id, stage: _room(board, run, worker_id, stage))
    board.next_generation()
    struck = any(stage.host in lost for stage in run.plan.stages())
    if not struck:
        plan = replace(plan, reason=f"without {', '.join(lost)}, which has no stage and is not needed any more")
    if struck and board.progress is not None:
        board.progress = replace(board.progress, failovers=board.progress.failovers + 1)
        progress.disturbed(board)
    put_in_force(board, replace(run, plan=plan, adopted=(), complete=()), extra=lost)
    board.tell(StoryKind.FAILOVER if struck else StoryKind.RUN, plan.reason, generation=plan.generation)
    return True


def _room(board: Board, run: Run, worker_id: WorkerId, stage: StagePlan) -> int:
    """For how many microbatches of the stage the worker has memory, as far as its limit is known."""
    assert run.plan is not None
    limit = memory_bytes(board)
    if limit is None or not run.costs:
        return MAX_APART
    own = run.plan.hosted_by(worker_id)[0].place
    memory = run.spec.training.redundancy_memory
    return help_that_fits(arrangement_of(run.plan), run.costs, own, stage.place, memory, limit)


def save_again(board: Board) -> None:
    """The same plan in a new generation: members that are at the end save the last step again."""
    run = board.run
    assert run is not None and run.plan is not None
    generation = board.next_generation()
    # Who has helped with a copy that is not trusted any more has nothing left to help with.
    plan = fail_over(_without_distrusted(run.plan, run), (), generation) or fail_over(run.plan, (), generation)
    assert plan is not None, "nobody is lost"
    plan = replace(plan, reason="the last checkpoint is saved again")
    put_in_force(board, replace(run, plan=plan, adopted=(), complete=()), extra=[])
    board.tell(StoryKind.RUN, plan.reason, generation=plan.generation)


def _without_distrusted(plan: Plan, run: Run) -> Plan:
    """A copy that differs from its owner's is no shadow."""
    bad = {(d.worker_id, d.layer) for d in run.distrusted}
    pipelines = []
    for pipeline in plan.pipelines:
        stages = tuple(
            replace(s, shadows=tuple(w for w in s.shadows if not any((w, x) in bad for x in s.layers)))
            for s in pipeline.stages
        )
        pipelines.append(replace(pipeline, stages=stages))
    return replace(plan, pipelines=tuple(pipelines))


def put_in_force(board: Board, run: Run, extra: list[WorkerId]) -> None:
    """Tell the members, and those that were members and live on."""
    assert run.plan is not None and board.progress is not None
    run = replace(run, plan=replace(run.plan, told_step=progress.told_step(board.progress)))
    assert run.plan is not None
    members = run.plan.worker_ids()
    board.run = replace(run, broken=tuple(b for b in run.broken if b.reporter in members and b.peer in members))
    for worker_id in dict.fromkeys((*members, *extra)):
        board.tell_worker(worker_id, Adopt(plan=run.plan))
