"""What must hold of the machine after every event, whatever happened. For every test that drives one."""

from bamboo_trainer.plan import PlanKind, node_id_of
from bamboo_trainer.plan_rules import check_plan

from bamboo_cli.coordinator.machine import Machine
from bamboo_cli.coordinator.states import ENDED, LEASED, UNDER_PLAN, NodeState, RunState, WorkerState

_seen_generation = "_generation_seen_by_invariants"


def check_invariants(machine: Machine) -> None:
    """Raises AssertionError. Called after each event, it also sees that numbers only grow."""
    _check_nodes(machine)
    _check_run(machine)
    _check_growth(machine)


def _check_nodes(machine: Machine) -> None:
    board = machine.board
    instances = [n.instance_id for n in board.nodes.values() if n.instance_id]
    assert len(set(instances)) == len(instances), "an instance belongs to one node"
    for node in board.nodes.values():
        assert node.number <= board.cluster.num_named
        for index, accelerator in enumerate(node.accelerators):
            worker = accelerator.worker
            if worker is not None:
                assert node.state in LEASED, f"{node.node_id} is {node.state} and has a worker"
                assert worker.worker_id == f"{node.node_id}/{accelerator.incarnation}"
                assert worker.accelerator == index
        assert node.incarnation >= max((each.incarnation for each in node.accelerators), default=0)
        if node.state is NodeState.ACTIVE:
            assert any(worker.state is WorkerState.PREPARED for worker in node.workers)
        if node.state is NodeState.DRAINING:
            assert node.leaving
        assert not (node.asked and node.retry_at is not None), "a create call is out, or due later, not both"
    wanted = board.config.num_nodes
    asked = [n for n in board.nodes.values() if n.asked and n.state is NodeState.INTENDED]
    assert len(asked) <= wanted, "no more is asked of the cloud than wanted"


def _check_run(machine: Machine) -> None:
    board = machine.board
    run, progress = board.run, board.progress
    if run is None or progress is None:
        return
    if run.plan is not None:
        check_plan(run.plan)
        assert run.base_generation <= run.plan.generation <= board.cluster.generation
        for member in run.plan.members:
            assert member.node_id == node_id_of(member.worker_id)
        for stage in run.plan.stages() if run.plan.kind is PlanKind.BOUNDARY else ():
            assert node_id_of(stage.host) not in map(node_id_of, stage.shadows), "a stage and its shadow share no node"
    if run.state in UNDER_PLAN:
        assert run.plan is not None
    assert (run.pause is not None) == (run.state in (RunState.QUIESCING, RunState.HALTING)) or (
        run.state is RunState.WAITING
    )
    if run.state is RunState.RUNNING:
        assert run.settled
        lost = [w for w in run.plan.worker_ids() if not board.is_live(w)] if run.plan else []
        assert not lost, f"{lost} are lost and the run takes no notice"
    if run.state in ENDED:
        assert run.ended_at is not None
        assert not board.workers(WorkerState.PREPARED)
    samples = run.spec.training.num_microbatches * run.spec.training.microbatch_size
    assert progress.num_samples % samples == 0
    assert progress.num_samples <= (progress.committed_step + 1) * samples, "no sample is counted twice"
    assert progress.committed_step < run.spec.training.num_steps
    if board.checkpoints is not None and progress.committed_step >= 0 and not run.complete:
        newest = max((*board.checkpoints.complete, *board.checkpoints.marking), default=-1)
        assert newest <= progress.committed_step or run.plan is None, "a checkpoint is never ahead of the run"


def _check_growth(machine: Machine) -> None:
    board = machine.board
    seen = getattr(board, _seen_generation, 0)
    assert board.cluster.generation >= seen, "generations only grow"
    setattr(board, _seen_generation, board.cluster.generation)
