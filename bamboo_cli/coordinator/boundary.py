"""The next plan for a step boundary: from which step, over whom. docs/coordinator.md."""

from dataclasses import replace
from functools import lru_cache

from bamboo_trainer.placement import Candidate
from bamboo_trainer.plan import Plan, StepSummary, WorkerId
from bamboo_trainer.planner import arrange
from bamboo_trainer.reconfigure import plan_boundary
from bamboo_trainer.wanted import Wanted

from bamboo_cli.coordinator import checkpoints, progress
from bamboo_cli.coordinator.board import Board
from bamboo_cli.coordinator.entities import Worker
from bamboo_cli.coordinator.events import StoryKind
from bamboo_cli.coordinator.plans import put_in_force
from bamboo_cli.coordinator.roster import num_nodes, reckoned_with
from bamboo_cli.coordinator.run_entities import Run
from bamboo_cli.coordinator.states import WANTED, NodeState, RunState, WorkerState
from bamboo_cli.coordinator.weather import wanted_of


def is_anybody_coming(board: Board) -> bool:
    """A node that is about to be rented, boots, or has a worker that is yet to be prepared."""
    num_wanted = sum(n.state in WANTED for n in board.nodes.values())
    if board.config.replace and not board.cluster.gave_up and num_wanted < board.config.num_nodes:
        return True
    for node in board.nodes.values():
        if node.leaving:
            continue
        if node.state in (NodeState.INTENDED, NodeState.BOOTING):
            return True
        if node.state in (NodeState.JOINED, NodeState.STANDBY, NodeState.ACTIVE) and (
            any(each.worker is None or each.worker.state is not WorkerState.PREPARED for each in node.accelerators)
        ):
            return True
    return False


def is_node_half_there(board: Board) -> bool:
    """Its first worker has just been prepared, and the others will be in a moment."""
    return any(
        board.now - worker.since < board.config.gather_s
        and len(board.nodes[worker.node_id].accelerators) > len(board.workers_on(worker.node_id, WorkerState.PREPARED))
        for worker in board.staying(WorkerState.PREPARED)
    )


def num_hoped_for(board: Board) -> int:
    """Nodes that are there to stay, on their way, or lost and still free to come back."""
    return sum(n.state in (*WANTED, NodeState.LOST) and not n.leaving for n in board.nodes.values())


def may_have_enough(board: Board) -> bool:
    """Whether ``min_nodes`` can come together yet, now or later."""
    run, config = board.run, board.config
    assert run is not None
    will_rent = not board.cluster.gave_up and (config.replace or board.cluster.num_named < config.num_nodes)
    return will_rent or num_hoped_for(board) >= max(1, run.spec.min_nodes)


def may_plan(board: Board) -> bool:
    """Enough nodes; and none on their way that would keep the number of pipelines."""
    run = board.run
    assert run is not None
    usable = _usable(board)
    if num_nodes(usable) < max(1, run.spec.min_nodes):
        return False
    stood_still_s = board.now - (run.pause.since if run.pause else run.since)
    return stood_still_s >= board.config.patience_s or not would_thin_out(board, len(usable))


def would_thin_out(board: Board, num_workers: int) -> bool:
    """Fewer pipelines change the bits of the sums. While other nodes are coming that can wait: with protection and
    another pipeline, no single loss costs a step meanwhile. Where their number is the planner's, it waits for nobody.
    """
    run = board.run
    assert run is not None
    wanted = wanted_of(board)
    if run.plan is None or wanted.num_pipelines is None:
        return False
    thinner = arrange(num_workers, wanted).num_pipelines < run.plan.num_pipelines
    return thinner and wanted.is_protected and is_anybody_coming(board)


def _usable(board: Board) -> list[Worker]:
    """Prepared workers that get a stage: those that are reckoned with, or, when they are too few, those that are
    leaving as well."""
    run = board.run
    assert run is not None
    staying = reckoned_with(board)
    return staying if num_nodes(staying) >= max(1, run.spec.min_nodes) else board.workers(WorkerState.PREPARED)


def _candidates(board: Board, base: int) -> tuple[Candidate, ...]:
    """All prepared workers, with the layers that they hold as they are after step ``base``."""
    usable = {worker.worker_id for worker in _usable(board)}
    return tuple(
        Candidate(
            worker_id=worker.worker_id,
            node_id=worker.node_id,
            zone=board.nodes[worker.node_id].zone,
            address=worker.address,
            port=worker.port,
            layers=_held(board, worker.worker_id, base),
            learned=_learned(board, worker.worker_id),
            leaving=worker.worker_id not in usable,
        )
        for worker in board.workers(WorkerState.PREPARED)
    )


def _learned(board: Board, worker_id: WorkerId) -> frozenset[int]:
    found = board.run.handover if board.run is not None else None
    if found is None or worker_id not in found.learned:
        return frozenset()
    return frozenset(f.layer for lesson in found.lessons if lesson.worker_id == worker_id for f in lesson.fetches)


def _held(board: Board, worker_id: WorkerId, base: int) -> frozenset[int]:
    run = board.run
    assert run is not None
    for stop in run.pause.stops if run.pause else ():
        said = stop.stopped
        if stop.worker_id != worker_id:
            continue
        rolls = said.held_step == base and said.committed_step == base - 1 and _summary(board, base) is not None
        if said.committed_step == base or rolls:
            bad = {d.layer for d in run.distrusted if d.worker_id == worker_id}
            held = frozenset(said.layers) - bad
            # layers kept only to hand them over do not move with the step
            return held & frozenset(run.plan.layers_of(worker_id)) if rolls and run.plan else held
    return frozenset()


def _summary(board: Board, step: int) -> StepSummary | None:
    """What step ``step`` left behind, from whoever knows."""
    run, known = board.run, board.progress
    assert run is not None and known is not None
    told = [stop.stopped.summary for stop in (run.pause.stops if run.pause else ())]
    return next((s for s in (*told, known.summary) if s is not None and s.step == step), None)


def choose_base(board: Board) -> int:
    """The newest step after which the run can go on: one whose every layer has a live holder, else the checkpoint's."""
    run, known = board.run, board.progress
    assert run is not None and known is not None
    newest = checkpoints.newest(board)
    checkpoint = -1 if newest is None else newest
    told = {s.stopped.committed_step for s in (run.pause.stops if run.pause else ()) if board.is_live(s.worker_id)}
    for base in sorted({known.committed_step, *told}, reverse=True):
        if base <= checkpoint:
            break
        held = frozenset[int]().union(*(c.layers for c in _candidates(board, base)))
        if len(held) == len(run.costs):
            return base
    return checkpoint


def plan_if_now(board: Board) -> Plan | None:
    """The one that is wanted, were it made now: all members hold what the plan in force gives them. None: nobody could
    get a stage."""
    run = board.run
    assert run is not None and run.plan is not None
    bad = {(d.worker_id, d.layer) for d in run.distrusted}
    candidates = tuple(
        replace(c, layers=frozenset(x for x in run.plan.layers_of(c.worker_id) if (c.worker_id, x) not in bad))
        for c in _candidates(board, base=-2)
    )
    return None if all(c.leaving for c in candidates) else _planned(candidates, wanted_of(board))


@lru_cache(maxsize=8)
def _planned(candidates: tuple[Candidate, ...], wanted: Wanted) -> Plan:
    """It may be asked after every event."""
    return plan_boundary(generation=0, first_step=0, candidates=candidates, wanted=wanted)


def plan_next(board: Board) -> None:
    """A boundary plan over whoever is prepared, from live layers where there are, else from the checkpoint."""
    run, known = board.run, board.progress
    assert run is not None and known is not None
    base = choose_base(board)
    told = _summary(board, base)
    if base > known.committed_step and run.plan is not None:
        progress.count(board, base, told)
    is_first = run.plan is None
    lost_steps = known.committed_step - base
    if lost_steps > 0:
        progress.go_back(board, base)
        checkpoints.forget_after(board, base)
    elif is_first:
        board.progress = replace(known, committed_step=base)
    assert board.run is not None
    continues = run.base_generation if run.plan is not None and lost_steps <= 0 else 0
    plan = replace(_make_plan(board, board.run, base, told), continues=continues)
    reads = not is_first and (lost_steps > 0 or (base >= 0 and any(x.source is None for x in plan.fetches)))
    earlier = board.run.restoring  # a restore that was cut short is part of this one
    restoring = max(0, lost_steps) + (earlier or 0) if reads or earlier is not None else None
    before, left_out = board.live_members(), _left_standing_by(board)
    run = replace(
        board.run,
        plan=plan,
        base_generation=plan.generation,
        settled=False,
        restoring=restoring,
        adopted=(),
        complete=(),
        pause=None,
        change_since=None,
        handover=None,
        distrusted=(),
    )
    put_in_force(board, run, extra=before)
    board.move_run(RunState.ADOPTING)
    _tell_plan(board, plan, left_out, is_first)


def _make_plan(board: Board, run: Run, base: int, told: StepSummary | None) -> Plan:
    stops = run.pause.stops if run.pause else ()
    rolls = any(s.stopped.held_step == base and s.stopped.committed_step == base - 1 for s in stops)
    newest = checkpoints.newest(board)
    return plan_boundary(
        generation=board.next_generation(),
        first_step=base + 1,
        candidates=_candidates(board, base),
        wanted=wanted_of(board),
        checkpoint_step=newest if newest == base else None,
        roll_forward=told if rolls else None,
        reason=run.pause.reason if run.pause else "the run begins",
    )


def _tell_plan(board: Board, plan: Plan, left_out: str, is_first: bool) -> None:
    assert board.run is not None and board.progress is not None
    generation, first_step = plan.generation, plan.first_step
    text = f"plan {generation} from step {first_step}: {plan.reason}{left_out}"
    if is_first:
        board.tell(StoryKind.RUN, text, generation=generation, step=first_step)
        return
    if board.run.restoring is not None:
        board.tell(StoryKind.RUN, f"back to {_source(plan)}; {text}", generation=generation, step=first_step)
        return
    board.progress = replace(board.progress, reconfigurations=board.progress.reconfigurations + 1)
    board.tell(StoryKind.RECONFIGURATION, text, generation=generation, step=first_step)


def _left_standing_by(board: Board) -> str:
    """Nodes that might have had a stage: nobody shall wonder what they are paid for."""
    usable = _usable(board)
    newcomers = list(dict.fromkeys(w.node_id for w in board.staying(WorkerState.PREPARED) if w not in usable))
    if not newcomers:
        return ""
    verb = "stands" if len(newcomers) == 1 else "stand"
    return f"; {', '.join(newcomers)} {verb} by until nodes are lost less often"


def restored(board: Board) -> None:
    """All members have read their layers: only now is it sure that the checkpoint was good."""
    run, known = board.run, board.progress
    assert run is not None and run.plan is not None and known is not None and run.restoring is not None
    board.run = replace(run, restoring=None)
    board.progress = replace(known, restores=known.restores + 1)
    text = f"restored from {_source(run.plan)}, {_steps(run.restoring)} run again"
    generation, step = run.plan.generation, run.plan.first_step
    board.tell(StoryKind.RESTORE, text, generation=generation, step=step, steps_rerun=run.restoring)


def _source(plan: Plan) -> str:
    return "the seed" if plan.checkpoint_step is None else f"the checkpoint of step {plan.checkpoint_step}"


def _steps(count: int) -> str:
    return "1 step is" if count == 1 else f"{count} steps are"
