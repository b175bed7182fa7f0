"""Nodes with several accelerators, each with a worker: what is counted by node, and what by worker."""

from dataclasses import replace

from bamboo_agent.messages import PROTOCOL_VERSION, Join, WorkerExited
from bamboo_trainer.plan import Mode, NodeId

from bamboo_cli.coordinator import events as ev
from bamboo_cli.coordinator.entities import Node
from bamboo_cli.coordinator.machine import Machine
from bamboo_cli.coordinator.settings import ClusterConfig
from bamboo_cli.coordinator.states import NodeState, RunReason, RunState, WorkerState
from bamboo_cli.coordinator.weather import hazard
from tests.coordinator.scenario import Player
from tests.coordinator.small_world import World
from tests.coordinator.test_storms import new_world, run_spec

N1, N2 = NodeId("n1"), NodeId("n2")


def play(*lines: str) -> World:
    player = Player(lambda world: None)
    for line in lines:
        player.perform(line)
    assert player.world is not None
    return player.world


def node_of(world: World, node_id: NodeId) -> Node:
    return world.machine.board.nodes[node_id]


def workers_of(world: World, node_id: NodeId) -> list[str]:
    return [worker.worker_id for worker in node_of(world, node_id).workers]


def test_a_nodes_loss_is_one_loss_however_many_workers_go_with_it() -> None:
    one = play("cluster nodes=2", "train steps=40 stages=2", "steps 1", "kill n2")
    two = play("cluster nodes=2 accelerators=2", "train steps=40 pipelines=2 stages=2", "steps 1", "kill n2")
    assert [loss.node_id for loss in two.machine.board.cluster.losses] == [N2]
    assert hazard(two.machine.board) == hazard(one.machine.board)


def test_a_loss_of_two_workers_is_one_failover() -> None:
    world = play("cluster nodes=2 accelerators=2", "train steps=40 stages=4", "steps 1", "freeze n2", "wait 12")
    progress = world.machine.board.progress
    assert progress is not None and progress.failovers == 1
    assert [told.text for told in world.told if told.kind == ev.StoryKind.FAILOVER] == [
        "lost n2/1, n2/2: n1/1 hosts stage 1 of pipeline 0; n1/2 hosts stage 3 of pipeline 0"
    ]


def test_two_crashes_on_one_node_are_two_losses_of_which_each_costs_its_own_worker() -> None:
    world = play("cluster nodes=2 accelerators=2", "train steps=40 pipelines=2 stages=2", "steps 1")
    for worker_id in ("n1/1", "n1/2"):
        worker = world.worker(type(N1)(worker_id))  # type: ignore[arg-type]
        assert worker is not None
        world.end_worker(world.nodes[N1], worker.worker_id, -9)
        world.pump(training=False)
    assert workers_of(world, N1) == ["n1/3", "n1/4"]
    assert [worker.accelerator for worker in node_of(world, N1).workers] == [0, 1]
    assert len(world.machine.board.cluster.losses) == 2
    assert workers_of(world, N2) == ["n2/1", "n2/2"]


def test_an_accelerator_on_which_no_worker_gets_ready_ends_the_run_while_the_other_one_works() -> None:
    world = play("cluster nodes=1 accelerators=2", "hold", "train steps=40 pipelines=1 stages=2")
    node = world.nodes[N1]

    def broken() -> None:
        for worker in [w for w in node.workers.values() if w.accelerator == 1]:
            del node.workers[worker.worker_id]
            world.say(node, WorkerExited(worker_id=worker.worker_id, exit_code=1, log_tail="no such device\n"))

    for _ in range(40):
        broken()
        world.pump_once(training=False)
        world.pass_time(0.25)
    run = world.machine.board.run
    assert run is not None and (run.state, run.reason) == (RunState.FAILED, RunReason.WORKER_CRASHES)
    assert run.detail == (
        "3 workers in a row on n1, accelerator 1, ended before they were prepared; the last with exit code 1: "
        "no such device"
    )


def test_a_silent_worker_is_fenced_alone() -> None:
    world = play(
        "cluster nodes=2 accelerators=2 lease=4", "train steps=40 pipelines=2 stages=2", "freeze-worker n2/1", "wait 6"
    )
    assert workers_of(world, N1) == ["n1/1", "n1/2"]
    assert workers_of(world, N2) == ["n2/2", "n2/3"] or workers_of(world, N2) == ["n2/3", "n2/2"]


def test_a_cut_between_two_nodes_is_one_verdict_against_one_of_them() -> None:
    """Given two workers a node, none of which reaches the other node's: both workers of one are lost at once."""
    world = play("cluster nodes=2 accelerators=2 lease=4", "train steps=40 stages=4", "steps 1", "cut n2/1", "cut n2/2")
    world.pass_time(5.0)
    lost = [told.text for told in world.told if told.kind == ev.StoryKind.FAILOVER]
    assert len(lost) == 1 and lost[0].startswith("lost n2/1, n2/2: ")


def test_min_nodes_counts_nodes() -> None:
    world = play(
        "cluster nodes=2 accelerators=2 replace=no",
        "train steps=40 pipelines=2 stages=2 min_nodes=2 mode=off",
        "steps 1",
        "kill n2",
    )
    assert world.machine.board.run is not None
    assert (world.machine.board.run.state, world.machine.board.run.reason) == (RunState.FAILED, RunReason.NO_NODES)


def test_a_drained_node_leaves_with_all_its_workers_at_one_boundary() -> None:
    world = play("cluster nodes=2 accelerators=2", "train steps=40 stages=4", "steps 1", "drain n1", "steps 3")
    progress = world.machine.board.progress
    assert progress is not None and (progress.reconfigurations, progress.failovers) == (1, 0)
    assert node_of(world, N1).state is NodeState.ENDED
    assert workers_of(world, N1) == []


def test_a_drill_on_a_stage_takes_the_node_that_hosts_it() -> None:
    world = play("cluster nodes=2 accelerators=2", "train steps=40 stages=4 drill=2:3!", "steps 3")
    struck = [told.text for told in world.told if told.kind == ev.StoryKind.DRILL]
    assert struck == ["n2 is to be taken without notice after step 2"]
    assert node_of(world, N2).state is NodeState.ENDED


def test_a_run_begins_when_all_accelerators_have_a_worker() -> None:
    world = new_world(2, num_accelerators=2)
    board = world.machine.board
    world.handle(ev.Started())
    world.handle(ev.RequestMade(request_id=1, request=ev.StartRun(spec=run_spec(2, 2, Mode.BUBBLE))))
    while board.run is not None and board.run.state is RunState.STARTING:
        assert world.pump_once(training=False)
    assert len(board.workers(*WorkerState)) == 4 and not board.workers(WorkerState.STARTING)


def test_an_agent_that_comes_back_with_other_accelerators_is_believed() -> None:
    world = play("cluster nodes=1 accelerators=2")
    node = world.nodes[N1]
    for boot_id, number, expected in (("second", 1, ["n1/3"]), ("third", 3, ["n1/4", "n1/5", "n1/6"])):
        world.drop_link(node)
        node.workers.clear()
        node.boot_id, node.unacknowledged, node.sequence = boot_id, [], 0
        node.outbox.clear()
        world.config = replace(world.config, num_accelerators=number)
        world.pump(training=False)
        assert workers_of(world, N1) == expected
        assert len(node_of(world, N1).accelerators) == number


def test_a_node_of_an_older_state_file_has_no_accelerator_until_its_agent_says_so() -> None:
    world = play("cluster nodes=1")
    rows = world.machine.dump()
    rows["node/n1"] = rows["node/n1"].replace('"accelerators":[', '"worker":null,"forgotten":[')
    machine = Machine(ClusterConfig(cluster_id="c", num_nodes=1, zones=("a",)))
    machine.load(rows)
    assert machine.board.nodes[N1].accelerators == ()
    machine.handle(ev.Started(), 2000.0)
    join = Join(
        protocol_version=PROTOCOL_VERSION,
        node_id=N1,
        boot_id="boot-1",
        instance_id="i-1",
        zone="a",
        address="",
        pid=1,
        workers=(),
        num_accelerators=2,
    )
    machine.handle(ev.AgentJoined(join=join), 2001.0)
    assert [worker.worker_id for worker in machine.board.nodes[N1].workers] == ["n1/2", "n1/3"]
