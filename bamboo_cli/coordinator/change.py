"""Whether the plan in force should be replaced at a step boundary, and why. docs/coordinator.md, docs/planner.md."""

from bamboo_trainer.arrangement import Arrangement, arrangement_of
from bamboo_trainer.plan import Plan, PlanKind, WorkerId
from bamboo_trainer.planner import arrange, is_worth_it
from bamboo_trainer.redundancy import is_fully_shadowed
from bamboo_trainer.wanted import HORIZON_S, Wanted

from bamboo_cli.coordinator.board import Board
from bamboo_cli.coordinator.boundary import is_anybody_coming, would_thin_out
from bamboo_cli.coordinator.entities import Run
from bamboo_cli.coordinator.roster import reckoned_with, score
from bamboo_cli.coordinator.weather import horizon_s, wanted_of

DOUBLED = 0.5
"""Of its score, what a plan commits in which some worker runs two stages: it sets the pace."""


def why_change(board: Board) -> tuple[str, float] | None:
    """Why a boundary plan would be better than the one in force, and how long that may wait, in seconds."""
    run = board.run
    assert run is not None and run.plan is not None
    staying = reckoned_with(board)
    if len(staying) < max(1, run.spec.min_nodes):
        return None
    leaving = sorted(
        n.node_id for n in board.nodes.values() if n.leaving and n.worker and _works(run, n.worker.worker_id)
    )
    if leaving:
        return f"{', '.join(leaving)} is leaving", _urgent_s(board, len(staying))
    if run.distrusted:
        copies = ", ".join(f"layer {d.layer} on {d.worker_id}" for d in run.distrusted)
        return f"copies that differ from their owners': {copies}", board.config.settle_s
    wanted = wanted_of(board)
    if wanted.is_redundant and len(staying) >= 2 and _lacks_shadow(run.plan, wanted, len(staying)):
        return "a stage lacks a shadow", _urgent_s(board, len(staying))
    if wanted.is_auto and _is_doubled(run.plan):
        return "a worker runs two stages", _urgent_s(board, len(staying))
    if why := _why_better(board, run.plan, wanted, len(staying)):
        return why, board.config.gather_s if is_anybody_coming(board) else 0.0
    return None


def _urgent_s(board: Board, num_staying: int) -> float:
    return board.config.patience_s if would_thin_out(board, num_staying) else board.config.settle_s


def _works(run: Run, worker_id: WorkerId) -> bool:
    assert run.plan is not None
    return bool(run.plan.layers_of(worker_id))


def _lacks_shadow(plan: Plan, wanted: Wanted, num_staying: int) -> bool:
    """That it could have: a boundary plan over all that stay has every shadow that their nodes allow."""
    if plan.kind is PlanKind.BOUNDARY and num_staying <= len({stage.host for stage in plan.stages()}):
        return False
    level = arrangement_of(plan).level if wanted.level is None else wanted.level
    return not is_fully_shadowed(plan, level)


def _is_doubled(plan: Plan) -> bool:
    hosts = [stage.host for stage in plan.stages()]
    return len(set(hosts)) < len(hosts)


def _why_better(board: Board, plan: Plan, wanted: Wanted, num_staying: int) -> str | None:
    """What nothing forces: made when it pays its price. A fixed shape is filled with any node that helps, unless nodes
    have come and gone lately."""
    new, expected_s = arrange(num_staying, wanted), horizon_s(board)
    num_hosts = len({stage.host for stage in plan.stages()})
    if not wanted.is_auto:
        helps = new.num_hosts > num_hosts and (
            expected_s >= HORIZON_S or _pays(plan, new, wanted, num_staying, expected_s)
        )
        return f"{num_staying} nodes can host more" if helps else None
    if not _pays(plan, new, wanted, num_staying, expected_s):
        return None
    more = score(new, wanted, num_staying) / max(1e-12, _score_in_force(plan, wanted, num_staying)) - 1
    return f"{num_staying} nodes should commit {more:.0%} more"


def _pays(plan: Plan, new: Arrangement, wanted: Wanted, num_staying: int, expected_s: float) -> bool:
    old_score = _score_in_force(plan, wanted, num_staying)
    new_score = score(new, wanted, num_staying)
    return is_worth_it(new_score, old_score, switch_s=wanted.weather.switch_s, horizon_s=expected_s)


def _score_in_force(plan: Plan, wanted: Wanted, num_staying: int) -> float:
    return score(arrangement_of(plan), wanted, num_staying) * (DOUBLED if _is_doubled(plan) else 1.0)
