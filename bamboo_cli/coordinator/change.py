"""Whether the plan in force should be replaced at a step boundary, and why. docs/coordinator.md, docs/planner.md."""

from collections.abc import Sequence

from bamboo_trainer.arrangement import Arrangement, arrangement_of
from bamboo_trainer.plan import Plan, PlanKind, WorkerId, node_id_of
from bamboo_trainer.planner import arrange, is_worth_it
from bamboo_trainer.redundancy import missing_shadows
from bamboo_trainer.survival import lone_layers
from bamboo_trainer.wanted import HORIZON_S, Wanted

from bamboo_cli.coordinator.board import Board
from bamboo_cli.coordinator.boundary import is_anybody_coming, is_node_half_there, plan_if_now, would_thin_out
from bamboo_cli.coordinator.entities import Worker
from bamboo_cli.coordinator.roster import num_nodes, reckoned_with, score
from bamboo_cli.coordinator.run_entities import Run
from bamboo_cli.coordinator.weather import horizon_s, wanted_of

DOUBLED = 0.5
"""Of its score, what a plan commits in which some worker runs two stages: it sets the pace."""


def why_change(board: Board) -> tuple[str, float] | None:
    """Why a boundary plan would be better than the one in force, and how long that may wait, in seconds."""
    run = board.run
    assert run is not None and run.plan is not None
    staying = reckoned_with(board)
    if num_nodes(staying) < max(1, run.spec.min_nodes):
        return None
    leaving = sorted(
        n.node_id for n in board.nodes.values() if n.leaving and any(_works(run, w.worker_id) for w in n.workers)
    )
    if leaving:
        return f"{', '.join(leaving)} is leaving", _urgent_s(board, len(staying))
    if run.distrusted:
        copies = ", ".join(f"layer {d.layer} on {d.worker_id}" for d in run.distrusted)
        return f"copies that differ from their owners': {copies}", board.config.settle_s
    wanted = wanted_of(board)
    if num_nodes(staying) >= 2 and (why := _why_unsafe(board, run.plan, wanted, len(staying))):
        return why, _urgent_s(board, len(staying))
    if wanted.is_auto and _is_doubled(run.plan):
        return "a worker runs two stages", _urgent_s(board, len(staying))
    if why := _why_better(board, run.plan, wanted, staying):
        return why, board.config.gather_s if is_anybody_coming(board) else 0.0
    return None


def _urgent_s(board: Board, num_staying: int) -> float:
    if would_thin_out(board, num_staying):
        return board.config.patience_s
    return max(board.config.settle_s, board.config.gather_s if is_node_half_there(board) else 0.0)


def _works(run: Run, worker_id: WorkerId) -> bool:
    assert run.plan is not None
    return bool(run.plan.layers_of(worker_id))


def _why_unsafe(board: Board, plan: Plan, wanted: Wanted, num_staying: int) -> str | None:
    """What another plan would make safer. A boundary plan over all that stay has every shadow that their nodes allow,
    and so has one over some of them, unless several of its workers are on one node."""
    level = arrangement_of(plan).level if wanted.level is None else wanted.level
    lacks_shadow = "a stage lacks a shadow" if wanted.is_redundant and missing_shadows(plan, level) else None
    if plan.kind is PlanKind.FAILOVER:
        return lacks_shadow
    hosts = {stage.host for stage in plan.stages()}
    if num_staying <= len(hosts) or len({node_id_of(host) for host in hosts}) == len(hosts):
        return None
    if not (lacks_shadow or lone_layers(plan)) or (planned := plan_if_now(board)) is None:
        return None
    is_safer = (lone_layers(planned), missing_shadows(planned, level)) < (
        lone_layers(plan),
        missing_shadows(plan, level),
    )
    return lacks_shadow or "a node has layers that no other has" if is_safer else None


def _is_doubled(plan: Plan) -> bool:
    hosts = [stage.host for stage in plan.stages()]
    return len(set(hosts)) < len(hosts)


def _why_better(board: Board, plan: Plan, wanted: Wanted, staying: Sequence[Worker]) -> str | None:
    """What nothing forces: made when it pays its price. A fixed shape is filled with any node that helps, unless nodes
    have come and gone lately."""
    num_staying, nodes = len(staying), num_nodes(staying)
    new, expected_s = arrange(num_staying, wanted), horizon_s(board)
    num_hosts = len({stage.host for stage in plan.stages()})
    if not wanted.is_auto:
        helps = new.num_hosts > num_hosts and (
            expected_s >= HORIZON_S or _pays(plan, new, wanted, num_staying, expected_s)
        )
        return f"{_nodes(nodes)} can host more" if helps else None
    if not _pays(plan, new, wanted, num_staying, expected_s):
        return None
    more = score(new, wanted, num_staying) / max(1e-12, _score_in_force(plan, wanted, num_staying)) - 1
    return f"{_nodes(nodes)} should commit {more:.0%} more"


def _pays(plan: Plan, new: Arrangement, wanted: Wanted, num_staying: int, expected_s: float) -> bool:
    old_score = _score_in_force(plan, wanted, num_staying)
    new_score = score(new, wanted, num_staying)
    return is_worth_it(new_score, old_score, switch_s=wanted.weather.switch_s, horizon_s=expected_s)


def _score_in_force(plan: Plan, wanted: Wanted, num_staying: int) -> float:
    return score(arrangement_of(plan), wanted, num_staying) * (DOUBLED if _is_doubled(plan) else 1.0)


def _nodes(number: int) -> str:
    return f"{number} node{'' if number == 1 else 's'}"
