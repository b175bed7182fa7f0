"""Steps as they are committed: counted once each, the pauses between them, the drills that wait for one."""

import math
from dataclasses import replace

from bamboo_trainer.control import StepCommitted
from bamboo_trainer.plan import NodeId, StepSummary, node_id_of

from bamboo_cli.coordinator import untold
from bamboo_cli.coordinator.board import Board
from bamboo_cli.coordinator.events import PreemptInstance, RecordStep, StoryKind
from bamboo_cli.coordinator.run_entities import Progress, Run
from bamboo_cli.coordinator.settings import Drill

NUM_RECENT = 21
"""Steps whose median time is the usual one."""


def step_committed(board: Board, message: StepCommitted) -> None:
    """Told again by a new reporter, a step is not counted again; of a plan before the last boundary, it never is."""
    run, progress = board.active_run, board.progress
    if run is None or progress is None or run.plan is None:
        return
    if message.generation < run.base_generation:
        stale(board)
        return
    board.pulse.moved_at = board.now
    step = message.summary.step
    if step >= run.plan.first_step and not run.settled:
        board.run = replace(run, settled=True)
    if step <= progress.committed_step:
        _fill_in(board, progress, message)
        return
    board.progress = replace(progress, tokens_per_step=message.num_tokens)
    count(board, step, message.summary, told=message)


def told_step(progress: Progress) -> int:
    """Somebody has told of every step up to here."""
    return progress.untold[0][0] - 1 if progress.untold else progress.committed_step


def _fill_in(board: Board, progress: Progress, message: StepCommitted) -> None:
    """A step that counts already, though nobody had told of it."""
    step = message.summary.step
    if untold.holds(progress.untold, step):
        _record(board, message.summary, message.plan_generation, message.learning_rate)
        board.progress = replace(progress, untold=untold.told(progress.untold, step))


def count(board: Board, step: int, summary: StepSummary | None, told: StepCommitted | None = None) -> None:
    """Everything up to ``step`` is committed. Steps that nobody lived to tell of count, without their loss."""
    run, progress = board.run, board.progress
    assert run is not None and progress is not None
    samples = run.spec.training.num_microbatches * run.spec.training.microbatch_size
    new = step - progress.committed_step
    loss = summary.loss if summary is not None else progress.loss
    first_told = step if summary is not None else step + 1
    progress = replace(
        _clock_in(board, progress),
        committed_step=step,
        untold=untold.added(progress.untold, progress.committed_step + 1, first_told),
        summary=summary,
        loss=loss,
        first_loss=progress.first_loss if progress.first_loss is not None else loss,
        num_samples=progress.num_samples + new * samples,
        num_tokens=progress.num_tokens + new * progress.tokens_per_step,
    )
    board.progress = progress
    if summary is not None:
        if told is not None:
            _record(board, summary, told.plan_generation, told.learning_rate, told.step_s)
        else:
            _record(board, summary, run.plan.generation if run.plan else 0)
    _drill(board, run, step)


def _record(
    board: Board, summary: StepSummary, generation: int, learning_rate: float = 0.0, step_s: float = 0.0
) -> None:
    run, progress = board.run, board.progress
    assert run is not None and progress is not None
    samples = run.spec.training.num_microbatches * run.spec.training.microbatch_size
    board.out.append(
        RecordStep(
            run_id=run.run_id,
            step=summary.step,
            generation=generation,
            loss=summary.loss,
            gradient_norm=math.sqrt(sum(summary.square_norms)),
            learning_rate=learning_rate,
            step_s=step_s,
            num_samples=samples,
            num_tokens=progress.tokens_per_step,
            first_sample=summary.step * samples,
            losses=summary.losses,
            square_norms=summary.square_norms,
        )
    )


def count_all(board: Board) -> None:
    """The last step is committed, whether or not anybody lived to tell."""
    run, progress = board.run, board.progress
    assert run is not None and progress is not None
    last = run.spec.training.num_steps - 1
    if progress.committed_step < last:
        count(board, last, None)


def _clock_in(board: Board, progress: Progress) -> Progress:
    """A pause is what passed between two commits around a disturbance, less the usual time of a step."""
    if progress.last_commit_at is None:
        return replace(progress, last_commit_at=board.now, disturbed=False)
    passed_s = max(0.0, board.now - progress.last_commit_at)
    if progress.disturbed:
        pause_s = progress.pause_s + max(0.0, passed_s - progress.usual_step_s)
        return replace(progress, last_commit_at=board.now, disturbed=False, pause_s=pause_s)
    recent = (*progress.step_seconds, passed_s)[-NUM_RECENT:]
    return replace(progress, last_commit_at=board.now, step_seconds=recent)


def disturbed(board: Board) -> None:
    if board.progress is not None:
        board.progress = replace(board.progress, disturbed=True)


def stale(board: Board) -> None:
    """A message of an older generation: refused and counted."""
    if board.progress is not None:
        board.progress = replace(board.progress, num_stale=board.progress.num_stale + 1)


def go_back(board: Board, step: int) -> None:
    """The run goes on after ``step``; what was committed since is run again."""
    run, progress = board.run, board.progress
    assert run is not None and progress is not None
    lost = progress.committed_step - step
    samples = run.spec.training.num_microbatches * run.spec.training.microbatch_size
    board.progress = replace(
        progress,
        committed_step=step,
        summary=None,
        untold=untold.up_to(progress.untold, step),
        steps_rerun=progress.steps_rerun + lost,
        num_samples=progress.num_samples - lost * samples,
        num_tokens=progress.num_tokens - lost * progress.tokens_per_step,
    )


def _drill(board: Board, run: Run, step: int) -> None:
    for index, drill in enumerate(run.spec.drills):
        assert board.run is not None
        if drill.step > step or index in board.run.drills_done:
            continue
        board.run = replace(board.run, drills_done=(*board.run.drills_done, index))
        node_id = _victim(run, drill)
        if node_id is None or node_id not in board.nodes or not board.nodes[node_id].workers:
            board.tell(StoryKind.DRILL, f"the drill of step {drill.step} finds nobody to strike")
            continue
        board.run = replace(board.run, drills_struck=(*board.run.drills_struck, index))
        how = "with notice" if drill.notice else "without notice"
        board.tell(StoryKind.DRILL, f"{node_id} is to be taken {how} after step {step}", node_id=node_id)
        board.out.append(PreemptInstance(node_id=node_id, notice=drill.notice))


def _victim(run: Run, drill: Drill) -> NodeId | None:
    if drill.node_id is not None:
        return drill.node_id
    if run.plan is None or drill.stage_index is None:
        return None
    for stage in run.plan.stages():
        if (stage.pipeline_index, stage.stage_index) == (drill.pipeline_index, drill.stage_index):
            return node_id_of(stage.host)
    return None
