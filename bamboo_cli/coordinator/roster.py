"""Who is reckoned with in the next plan: whoever stays, but not newcomers that are likely to be gone again before they
have paid for their coming. Pure; docs/planner.md."""

from collections.abc import Iterable

from bamboo_trainer.arrangement import Arrangement
from bamboo_trainer.outlook import outlook
from bamboo_trainer.plan import node_id_of
from bamboo_trainer.planner import arrange, is_worth_it
from bamboo_trainer.wanted import HORIZON_S, Wanted

from bamboo_cli.coordinator.board import Board
from bamboo_cli.coordinator.entities import Worker
from bamboo_cli.coordinator.states import WorkerState
from bamboo_cli.coordinator.weather import horizon_s, wanted_of


def reckoned_with(board: Board) -> list[Worker]:
    """Prepared workers that may get a stage. After several losses lately, the nodes of newcomers stand by until it has
    been calm for long enough, unless the others could not keep the pipelines or their protection. A standby that has
    been there for longer than a plan may be thought to be in force is none."""
    staying = board.staying(WorkerState.PREPARED)
    run, expected_s = board.run, horizon_s(board)
    if run is None or run.plan is None or not run.costs or expected_s >= HORIZON_S:
        return staying
    at_work = {node_id_of(stage.host) for stage in run.plan.stages()}
    here_for_long = {
        node.node_id
        for node in board.nodes.values()
        if node.joined_at is not None and board.now - node.joined_at >= expected_s
    }
    established = [worker for worker in staying if worker.node_id in at_work | here_for_long]
    wanted = wanted_of(board)
    least = max(1, run.spec.min_nodes, 2 if wanted.is_redundant else 1)
    if len(established) in (0, len(staying)) or num_nodes(established) < least:
        return staying
    with_all, without = arrange(len(staying), wanted), arrange(len(established), wanted)
    if wanted.num_pipelines is not None and without.num_pipelines < with_all.num_pipelines:
        return staying
    new, old = score(with_all, wanted, len(staying)), score(without, wanted, len(established))
    return staying if is_worth_it(new, old, switch_s=wanted.weather.switch_s, horizon_s=expected_s) else established


def num_nodes(workers: Iterable[Worker]) -> int:
    return len({worker.node_id for worker in workers})


def score(arrangement: Arrangement, wanted: Wanted, num_workers: int) -> float:
    """A fixed shape is to be filled, whatever a standby would be worth."""
    num_standbys = num_workers - arrangement.num_hosts if wanted.is_auto else 0
    return outlook(arrangement, wanted, num_standbys).microbatches_per_hour
