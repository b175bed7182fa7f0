"""Which rung of the ladder is cheaper, where more than one would hold. Pure; docs/coordinator.md."""

from collections.abc import Collection

from bamboo_trainer.plan import StagePlan, WorkerId
from bamboo_trainer.planner import arrange
from bamboo_trainer.redundancy import fail_over
from bamboo_trainer.wanted import PRIOR_BYTES_PER_S

from bamboo_cli.coordinator.board import Board
from bamboo_cli.coordinator.roster import reckoned_with
from bamboo_cli.coordinator.weather import wanted_of


def bytes_per_s(board: Board) -> float:
    assert board.progress is not None
    return board.progress.link_bytes_per_s or PRIOR_BYTES_PER_S


def is_rerun_cheaper(board: Board, lost: Collection[WorkerId]) -> bool:
    """Whether to run the step again over standbys, rather than let a worker of another pipeline take a stage over.

    That worker has to do the stage's whole share of the step beside its own: about a step. Running it again costs what
    has passed of it, and the travel of the layers. Only where standbys make the plan whole again at once, and where no
    shadow is at hand, which has most of it done.
    """
    run, known = board.run, board.progress
    assert run is not None and run.plan is not None and known is not None
    if fail_over(run.plan, lost, 0) is None:
        return False  # there is no choice
    orphans = [s for s in run.plan.stages() if s.host in lost and not _has_live_shadow(s, lost)]
    usual_s = known.usual_step_s
    if not orphans or not usual_s or known.last_commit_at is None:
        return False
    num_hosts = len({stage.host for stage in run.plan.stages()})
    staying = reckoned_with(board)
    if not staying or arrange(len(staying), wanted_of(board)).num_hosts < num_hosts:
        return False
    passed_s = board.now - known.last_commit_at
    most = max(sum(run.costs[layer].state_bytes for layer in stage.layers) for stage in orphans)
    return passed_s + most / bytes_per_s(board) < usual_s


def _has_live_shadow(stage: StagePlan, lost: Collection[WorkerId]) -> bool:
    return any(shadow not in lost for shadow in stage.shadows)
