"""Before a change of plan: whoever will lack layers learns them while training goes on, if time allows.

See docs/handover.md. Nothing depends on it but how long the change takes.
"""

from collections import Counter
from dataclasses import replace

from bamboo_trainer.control import Learn, Learned
from bamboo_trainer.plan import Fetch, Member, WorkerId
from bamboo_trainer.planner import arrange

from bamboo_cli.coordinator import boundary, rungs
from bamboo_cli.coordinator.board import Board
from bamboo_cli.coordinator.events import StoryKind
from bamboo_cli.coordinator.roster import reckoned_with
from bamboo_cli.coordinator.run_entities import Handover, Lesson, Run
from bamboo_cli.coordinator.weather import wanted_of

MIN_MEASURED_BYTES = 1 << 20
"""Fewer say more about latency than about the link."""
RESERVE_STEPS = 2
"""Usual steps that are kept for reaching the boundary before a deadline."""
SPARE_S = 3.0
"""Before a deadline, for what the coordinator cannot foresee."""
MIN_PATIENCE_S = 60.0
PATIENCE = 5.0
"""Without a deadline, lessons may take so many times what they should."""


def is_ready(board: Board, reason: str) -> bool:
    """Whether the members may be asked to stop for the change: all have learned, or nothing is to be learned in time.

    Begins the lessons when the change is first asked about, and again when a worker or a source of them is lost.
    """
    run = board.run
    assert run is not None
    if _awaits_replacement(board, run):
        return False
    found = run.handover
    if found is None or found.base_generation != run.base_generation or not _all_live(board, found):
        return _begin(board, run, reason)
    if all(lesson.worker_id in found.learned for lesson in found.lessons):
        return True
    if board.now < found.until:
        return False
    board.tell(StoryKind.HANDOVER, "there is no more time to hand layers over; what is missing travels at the boundary")
    return True


def learned(board: Board, worker_id: WorkerId, message: Learned) -> None:
    run, known = board.active_run, board.progress
    if run is None or known is None or run.handover is None:
        return
    if message.base_generation != run.handover.base_generation or worker_id in run.handover.learned:
        return
    board.run = replace(run, handover=replace(run.handover, learned=(*run.handover.learned, worker_id)))
    if message.num_bytes >= MIN_MEASURED_BYTES and message.took_s > 0:
        board.progress = replace(known, link_bytes_per_s=message.num_bytes / message.took_s)
    text = f"{worker_id} has learned {_count(len(message.layers), 'layer')} in {message.took_s:.1f} s"
    board.tell(StoryKind.HANDOVER, text, num_bytes=message.num_bytes, took_s=message.took_s)


def say_again(board: Board, worker_id: WorkerId) -> None:
    """To a worker whose agent has come back."""
    found = board.run.handover if board.run is not None else None
    for lesson in found.lessons if found is not None else ():
        if found is not None and lesson.worker_id == worker_id and worker_id not in found.learned:
            _teach(board, lesson, found.base_generation)


def _begin(board: Board, run: Run, reason: str) -> bool:
    assert board.progress is not None
    planned = boundary.plan_if_now(board)
    fetches = tuple(fetch for fetch in planned.fetches if fetch.source is not None) if planned is not None else ()
    left_s = _seconds_left(board)
    takes_s = _takes_s(board, run, fetches)
    reserve_s = RESERVE_STEPS * board.progress.usual_step_s
    if not fetches:
        return True
    what = f"{reason}: {_count(len({f.layer for f in fetches}), 'layer')} would take {takes_s:.1f} s to hand over"
    if left_s is not None and takes_s + reserve_s > left_s:
        text = f"{what}, and {left_s:.1f} s are left: the change is made at the next boundary"
        board.tell(StoryKind.HANDOVER, text, takes_s=takes_s, left_s=left_s)
        return True
    patience_s = max(MIN_PATIENCE_S, PATIENCE * takes_s)
    learners = dict.fromkeys(fetch.worker_id for fetch in fetches)
    found = Handover(
        base_generation=run.base_generation,
        until=board.now + (patience_s if left_s is None else min(patience_s, left_s - reserve_s)),
        lessons=tuple(Lesson(worker_id=w, fetches=tuple(f for f in fetches if f.worker_id == w)) for w in learners),
    )
    board.run = replace(run, handover=found)
    left = "" if left_s is None else f" of the {left_s:.1f} s that are left"
    board.tell(StoryKind.HANDOVER, f"{what}{left}: training goes on meanwhile", takes_s=takes_s)
    for lesson in found.lessons:
        _teach(board, lesson, found.base_generation)
    return False


def _awaits_replacement(board: Board, run: Run) -> bool:
    """Those that stay are too few for the shape in force, another node is on its way, and the one that leaves still has
    time: one change of plan instead of two. Should it go early, it is a loss like any other."""
    assert run.plan is not None and board.progress is not None
    leaving = [w for n in board.nodes.values() if n.leaving for w in n.workers if run.plan.layers_of(w.worker_id)]
    if not leaving or not boundary.is_anybody_coming(board):
        return False
    num_staying = len(reckoned_with(board))
    num_hosts = len({stage.host for stage in run.plan.stages()})
    if num_staying and arrange(num_staying, wanted_of(board)).num_hosts >= num_hosts:
        return False
    left_s = _seconds_left(board)
    if left_s is None:
        return run.change_since is None or board.now - run.change_since < board.config.patience_s
    everything = tuple(
        Fetch(worker_id=worker.worker_id, layer=layer, source=worker.worker_id)
        for worker in leaving
        for layer in run.plan.layers_of(worker.worker_id)
    )
    reserve_s = RESERVE_STEPS * board.progress.usual_step_s
    return left_s > _takes_s(board, run, everything) + reserve_s + SPARE_S


def _teach(board: Board, lesson: Lesson, base_generation: int) -> None:
    sources = []
    for source in dict.fromkeys(fetch.source for fetch in lesson.fetches if fetch.source is not None):
        worker = board.worker_of(source)
        if worker is not None:
            member = Member(worker_id=source, node_id=worker.node_id, address=worker.address, port=worker.port)
            sources.append(member)
    message = Learn(base_generation=base_generation, fetches=lesson.fetches, sources=tuple(sources))
    board.tell_worker(lesson.worker_id, message)


def _all_live(board: Board, found: Handover) -> bool:
    involved = {lesson.worker_id for lesson in found.lessons}
    involved |= {f.source for lesson in found.lessons for f in lesson.fetches if f.source is not None}
    return all(board.is_live(worker_id) for worker_id in involved)


def _seconds_left(board: Board) -> float | None:
    """Until the first node that works for the run is taken; None: none is under notice."""
    deadlines = [n.deadline for n in board.nodes.values() if n.leaving and n.workers and n.deadline is not None]
    return max(0.0, min(deadlines) - board.now) if deadlines else None


def _takes_s(board: Board, run: Run, fetches: tuple[Fetch, ...]) -> float:
    by_source: Counter[WorkerId] = Counter()
    for fetch in fetches:
        assert fetch.source is not None
        by_source[fetch.source] += run.costs[fetch.layer].state_bytes
    return max(by_source.values(), default=0) / rungs.bytes_per_s(board)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
