"""Corners of the machine that are no story of their own."""

from dataclasses import replace

import pytest
from bamboo_agent.messages import PROTOCOL_VERSION, Hint, Join, WorkerExited
from bamboo_trainer.control import LayerCost, TookOver, WorkerFailed
from bamboo_trainer.plan import Mode, NodeId

from bamboo_cli.coordinator import events as ev
from bamboo_cli.coordinator.checkpoints import MAX_STEPS, MIN_STEPS, interval_steps
from bamboo_cli.coordinator.machine import Machine
from bamboo_cli.coordinator.states import NodeReason, NodeState, RunReason, RunState, WorkerState
from bamboo_cli.coordinator.weather import memory_bytes
from bamboo_cli.providers.base import EndReason, Instance, InstanceState
from tests.coordinator.scenario import Player
from tests.coordinator.small_world import World


def play(*commands: str) -> World:
    """Scenario commands, one after the other."""
    player = Player(lambda world: None)
    for command in commands:
        player.perform(command)
    assert player.world is not None
    return player.world


def run_of(world: World) -> tuple[RunState, RunReason, str]:
    run = world.machine.board.run
    assert run is not None
    return run.state, run.reason, run.detail


# --- agents -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"node_id": NodeId("n9")}, "no such node"),
        ({"instance_id": "i-7"}, "it runs on instance i-7"),
        ({"protocol_version": PROTOCOL_VERSION + 1}, f"version {PROTOCOL_VERSION + 1}"),
    ],
)
def test_an_agent_that_is_not_ours_is_refused_for_good(changed: dict[str, object], why: str) -> None:
    world = play("cluster nodes=1")
    fields: dict[str, object] = {
        "protocol_version": PROTOCOL_VERSION,
        "node_id": NodeId("n1"),
        "boot_id": "x",
        "instance_id": "i-1",
        "zone": "a",
        "address": "127.0.0.1",
        "pid": 1,
        "workers": (),
    }
    instructions = world.machine.handle(ev.AgentJoined(join=Join(**(fields | changed))), world.now)  # type: ignore[arg-type]
    (refused,) = [i for i in instructions if isinstance(i, ev.RefuseAgent)]
    assert refused.final
    assert why in refused.reason


def test_a_node_that_was_cut_off_and_comes_back_was_no_preemption() -> None:
    world = play("cluster nodes=2", "train steps=8 stages=2", "steps 2", "hold", "cut n2", "drop n2")
    world.send_one(world.nodes[NodeId("n1")])  # its peer says that it is gone
    progress = world.machine.board.progress
    assert progress is not None and progress.preemptions == 1
    assert world.machine.board.nodes[NodeId("n2")].reason is NodeReason.CUT_OFF
    world.pump(training=False)
    progress = world.machine.board.progress
    assert progress is not None and progress.preemptions == 0
    world.pump()
    assert run_of(world)[0] is RunState.DONE


def test_a_dropped_link_alone_is_no_loss() -> None:
    world = play("cluster nodes=2", "train steps=8 stages=2", "steps 1", "hold", "drop n2", "wait 9")
    assert world.machine.board.nodes[NodeId("n2")].state is NodeState.ACTIVE


@pytest.mark.parametrize("first", [ev.Tick(), ev.AgentBeat(node_id=NodeId("n1"), silence_s={})], ids=["tick", "beat"])
def test_a_coordinator_that_slept_blames_nobody(first: ev.Event) -> None:
    """Whatever it hears first: of several nodes' messages that lie ready, one comes before the others."""
    world = play("cluster nodes=2 lease=10", "train steps=8 stages=2", "steps 1", "wait 1")
    world.now += 3600.0
    world.handle(first)
    assert all(n.state is NodeState.ACTIVE for n in world.machine.board.nodes.values())
    world.pass_time(2.0)
    assert all(n.state is NodeState.ACTIVE for n in world.machine.board.nodes.values())


def test_after_a_restart_a_node_has_a_full_lease_to_come_back() -> None:
    world = play("cluster nodes=2 lease=10", "train steps=8 stages=2", "steps 1", "hold", "restart", "wait 9")
    assert {n.state for n in world.machine.board.nodes.values()} == {NodeState.ACTIVE}
    world.pass_time(2.0)
    assert {n.state for n in world.machine.board.nodes.values()} >= {NodeState.LOST}


def test_a_hint_is_told_and_nothing_follows_from_it() -> None:
    world = play("cluster nodes=1")
    said = ev.AgentSaid(node_id=NodeId("n1"), message=Hint(detail="rebalance"))
    instructions = world.machine.handle(said, world.now)
    assert [i.kind for i in instructions if isinstance(i, ev.Tell)] == [ev.StoryKind.HINT]
    assert world.machine.board.nodes[NodeId("n1")].state is NodeState.STANDBY


def test_a_node_lost_for_long_is_given_back() -> None:
    world = play("cluster nodes=1 lease=4", "freeze n1", "wait 6")
    assert world.machine.board.nodes[NodeId("n1")].state is NodeState.LOST
    world.pass_time(world.config.lost_patience_s)
    assert world.machine.board.nodes[NodeId("n1")].state is NodeState.RELEASED


# --- workers ----------------------------------------------------------------------------------------------------


def test_workers_that_keep_ending_before_they_are_prepared_end_the_run_with_their_last_words() -> None:
    def without_warm_workers(world: World) -> None:
        world.warm = lambda node: False  # type: ignore[method-assign]

    player = Player(without_warm_workers)
    player.perform("cluster nodes=1")
    player.perform("train steps=4 stages=2")
    world = player.world
    assert world is not None
    node = world.nodes[NodeId("n1")]
    for _ in range(3):
        (worker_id,) = node.workers
        del node.workers[worker_id]
        world.say(node, WorkerExited(worker_id=worker_id, exit_code=-11, log_tail="import recipe\nSegfault\n"))
        world.pump(training=False)
        world.pass_time(4.0)
        world.pump(training=False)
    state, reason, detail = run_of(world)
    assert (state, reason) == (RunState.FAILED, RunReason.WORKER_CRASHES)
    assert "3 workers in a row on n1" in detail
    assert "signal 11: Segfault" in detail


def test_workers_that_keep_ending_in_the_same_step_end_the_run() -> None:
    world = play("cluster nodes=2", "train steps=8 stages=2", "steps 2")
    for _ in range(20):
        if world.machine.board.active_run is None:
            break
        node = world.nodes[NodeId("n2")]
        if node.workers:
            (worker_id,) = node.workers
            world.end_worker(node, worker_id, exit_code=-9)
        world.pump(training=False)
        world.pass_time(4.0)
        world.pump(training=False)
    state, reason, detail = run_of(world)
    assert (state, reason) == (RunState.FAILED, RunReason.WORKER_CRASHES)
    assert "workers failed 8 times in a row without getting beyond step 2" in detail


def test_workers_that_end_in_different_steps_do_not_end_the_run() -> None:
    world = play("cluster nodes=2", "train steps=30 stages=2")
    for _ in range(12):
        node = world.nodes[NodeId("n2")]
        if node.workers:
            (worker_id,) = node.workers
            world.end_worker(node, worker_id, exit_code=-9)
        world.pump(training=False)
        for _ in range(50):
            if world.step():
                break
            world.pass_time(1.0)
            world.pump(training=False)
    assert run_of(world)[0] is not RunState.FAILED


def test_a_worker_that_does_not_get_ready_is_started_anew() -> None:
    world = play("cluster nodes=1")
    world.warm = lambda node: False  # type: ignore[method-assign]
    world.kill_node(NodeId("n1"))
    world.pump(training=False)
    world.pass_time(world.config.warm_patience_s + 2.0)
    world.pump(training=False)
    node = world.machine.board.nodes[NodeId("n2")]
    assert [(worker.worker_id, worker.state) for worker in node.workers] == [("n2/2", WorkerState.STARTING)]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("recipe", RunReason.RECIPE),
        ("loss_not_finite", RunReason.LOSS_NOT_FINITE),
        ("device", RunReason.DEVICE),
        ("out_of_memory", RunReason.OUT_OF_MEMORY),
        ("bug", RunReason.BUG),
    ],
)
def test_a_fault_that_no_other_try_would_mend_ends_the_run(fault: str, reason: RunReason) -> None:
    world = play("cluster nodes=2", "train steps=8 stages=2 every=2", "steps 3")
    worker = world.nodes[NodeId("n1")].workers
    (worker_id,) = worker
    world.report(worker[worker_id], WorkerFailed(fault=fault, detail="it was so"))  # type: ignore[arg-type]
    world.pump(training=False)
    state, found, detail = run_of(world)
    assert (state, found) == (RunState.FAILED, reason)
    assert detail == "n1/1: it was so"
    assert not world.all_workers(), "its workers are stopped"


def test_the_planner_keeps_within_what_is_free_on_the_poorest_device() -> None:
    # given GPUs of two sizes
    free_bytes = {NodeId("n1"): 24_000_000_000, NodeId("n2"): 15_900_000_000}
    player = Player(lambda world: world.free_bytes.update(free_bytes))
    for command in ("cluster nodes=3", "train steps=8 stages=2 every=2", "steps 1"):
        player.perform(command)
    assert player.world is not None
    board = player.world.machine.board
    assert board.run is not None
    # then nine tenths of the smaller one, in whole GB; the third is a CPU, of which nothing is known
    assert memory_bytes(board) == 14_000_000_000
    (worker,) = board.nodes[NodeId("n1")].workers
    assert worker.device == "the device of n1"
    # and the job's own word counts more
    board.run = replace(board.run, spec=replace(board.run.spec, memory_bytes=8_000_000_000))
    assert memory_bytes(board) == 8_000_000_000


def test_the_profiler_is_lost_and_another_worker_measures() -> None:
    world = play("cluster nodes=2", "hold", "train steps=4 stages=2")
    world.answer_one(), world.hear_cloud()
    assert world.machine.board.run is not None and world.machine.board.run.profiler == "n1/1"
    world.kill_node(NodeId("n1"))
    world.pump()
    assert run_of(world)[0] is RunState.DONE


def test_a_member_that_does_not_stop_is_fenced() -> None:
    """It beats, but it does not answer: a halt is waited for, not for ever."""
    world = play("cluster nodes=3 lease=4", "train steps=8 stages=3 mode=off", "steps 1", "hold", "kill n3")
    world.hear_cloud()
    assert run_of(world)[0] is RunState.HALTING
    for node in world.nodes.values():
        node.inbox.clear()  # the halt is never heard
    world.pass_time(14.0)
    board = world.machine.board
    assert board.workers(*WorkerState) == board.workers(WorkerState.STARTING)
    world.pump()
    assert run_of(world)[0] is RunState.DONE


def test_members_that_agree_on_no_boundary_are_halted() -> None:
    world = play("cluster nodes=2 lease=4", "train steps=8 stages=2", "steps 1", "hold", "stop", "wait 61")
    assert run_of(world)[0] is RunState.HALTING


# --- the cloud --------------------------------------------------------------------------------------------------


def test_an_instance_that_nobody_waits_for_is_given_back() -> None:
    world = play("cluster nodes=1")
    stray = Instance(
        instance_id="i-5",
        token="t",
        node_id="n5",
        cluster_id="c",
        instance_type="small",
        zone="a",
        state=InstanceState.RUNNING,
        address="127.0.0.5",
        launched_at=0.0,
    )
    instructions = world.machine.handle(ev.InstanceSeen(instance=stray), world.now)
    assert instructions == [ev.TerminateInstance(node_id=NodeId("n5"))]


def test_what_came_of_a_create_call_is_unknown_so_the_same_token_is_sent_again() -> None:
    world = play("cluster nodes=1", "hold", "kill n1")
    world.hear_cloud()
    (create,) = [asked for asked in world.asked if isinstance(asked, ev.CreateInstance)]
    world.asked.clear()
    failed = ev.CreateFailed(node_id=create.node_id, token=create.token, fault=ev.CreateFault.CLOUD, detail="timed out")
    world.handle(failed)
    world.pass_time(2.0)
    assert [asked for asked in world.asked if isinstance(asked, ev.CreateInstance)] == [create]


def test_after_a_shortage_another_zone_is_asked_with_another_token() -> None:
    world = play("cluster nodes=2 zones=a,b", "hold", "kill n1")
    world.hear_cloud()
    (first,) = [asked for asked in world.asked if isinstance(asked, ev.CreateInstance)]
    world.short_zones = {first.zone}
    world.answer_one(), world.hear_cloud()
    (second,) = [asked for asked in world.asked if isinstance(asked, ev.CreateInstance)]
    assert second.node_id == first.node_id
    assert second.zone != first.zone and second.token != first.token


def test_while_all_zones_are_short_the_pauses_between_tries_grow_to_a_limit() -> None:
    world = play("cluster nodes=2 zones=a", "hold", "kill n1")
    world.short_zones = {"a"}
    world.hear_cloud()
    for _ in range(12):
        world.answer_one(), world.hear_cloud()
        world.pass_time(world.config.max_back_off_s)
    delays = [dict(told.numbers)["delay_s"] for told in world.told if "gave no node" in told.text]
    assert delays[:3] == [1.0, 2.0, 4.0]
    assert delays[-1] == max(delays) == world.config.max_back_off_s


def test_nodes_are_spread_over_the_zones() -> None:
    world = play("cluster nodes=4 zones=a,b")
    assert sorted(n.zone for n in world.machine.board.nodes.values()) == ["a", "a", "b", "b"]


def test_an_agent_that_never_joins_costs_no_more_than_its_patience() -> None:
    world = play("cluster nodes=1", "hold", "kill n1")
    world.hear_cloud(), world.answer_one(), world.hear_cloud()
    assert world.machine.board.nodes[NodeId("n2")].state is NodeState.BOOTING
    world.pass_time(world.config.boot_patience_s + 1.0)
    assert world.machine.board.nodes[NodeId("n2")].state is NodeState.RELEASED


def test_closing_while_a_create_call_is_out_leaves_nothing_behind() -> None:
    world = play("cluster nodes=1", "hold", "kill n1")
    world.hear_cloud()
    world.handle(ev.RequestMade(request_id=1, request=ev.CloseCluster()))
    world.pump(training=False)
    assert world.stopped
    assert all(node.gone for node in world.nodes.values())
    assert world.answers[1].ok


# --- requests ---------------------------------------------------------------------------------------------------


def test_a_second_run_is_refused_while_one_goes_on() -> None:
    world = play("cluster nodes=2", "train steps=4 stages=2", "steps 1", "train run=r2 steps=4 stages=2")
    assert not world.answers[2].ok
    assert world.answers[2].text == "run r1 is running and there is one at a time; end it with `bamboo down`"


def test_a_run_can_be_stopped_before_it_has_begun() -> None:
    world = play("cluster nodes=2 zones=a", "short a", "kill n1 n2", "train steps=4 stages=2", "stop")
    assert run_of(world)[:2] == (RunState.STOPPED, RunReason.REQUESTED)
    assert world.answers[2].ok


def test_a_request_that_is_read_again_is_not_done_again() -> None:
    world = play("cluster nodes=2", "train steps=2 stages=2", "finish")
    run = world.machine.board.run
    assert run is not None
    world.machine.handle(ev.RequestMade(request_id=1, request=ev.StartRun(spec=run.spec)), world.now)
    assert world.machine.board.run is run


def test_draining_an_unknown_node_is_refused() -> None:
    assert not play("cluster nodes=1", "drain n7").answers[1].ok


# --- what is stored ---------------------------------------------------------------------------------------------


def test_only_rows_that_changed_are_handed_out() -> None:
    world = play("cluster nodes=2", "train steps=8 stages=2", "steps 2")
    machine = world.machine
    machine.changed_rows()
    machine.handle(ev.Tick(), world.now)
    machine.handle(ev.AgentBeat(node_id=NodeId("n1"), silence_s={}), world.now)
    assert machine.changed_rows() == {}
    world.kill_node(NodeId("n1"))
    machine.handle(ev.InstanceEnded(node_id=NodeId("n1"), reason=EndReason.FAILED, at=world.now), world.now)
    assert set(machine.changed_rows()) == {"cluster", "node/n1", "node/n3", "run/r1", "progress/r1"}


def test_rows_of_an_earlier_run_are_left_alone() -> None:
    world = play("cluster nodes=2", "train steps=2 stages=2", "finish")
    old = world.machine.dump()
    later = play("cluster nodes=2", "train steps=2 stages=2", "finish", "train run=r2 steps=4 stages=2", "steps 1")
    rows = {name: text for name, text in old.items() if "/r1" in name} | later.machine.dump()
    machine = Machine(world.config)
    machine.load(rows)
    assert machine.board.run is not None and machine.board.run.run_id == "r2"


# --- judgements -------------------------------------------------------------------------------------------------


def test_of_two_that_blame_each_other_the_one_with_shadows_goes_and_next_time_the_other() -> None:
    world = play("cluster nodes=2 lease=4", "train steps=20 stages=2", "steps 1", "cut n1", "wait 5")
    nodes = world.machine.board.nodes
    assert [n.incarnation for n in nodes.values()] == [1, 2], "the later id, of two with shadows"
    # when the one that was spared is cut off from the new one as well
    world.pump()
    world.pass_time(6.0)
    world.pump()
    assert nodes[NodeId("n1")].incarnation == 2, "then it was the one"


def test_auto_saves_more_often_where_nodes_are_taken_more_often() -> None:
    costs = tuple(
        LayerCost(name=f"l{i}", forward_s=0.1, backward_s=0.2, parameter_bytes=4_000_000, activation_bytes=1)
        for i in range(12)
    )

    def every(hazard: float) -> int:
        return interval_steps(costs, num_stages=4, num_microbatches=8, hazard=hazard, num_nodes=4)

    calm, rough = every(0.01), every(15.0)
    assert MIN_STEPS <= rough < calm <= MAX_STEPS


@pytest.mark.parametrize("mode", list(Mode))
def test_each_mode_gets_a_run_done(mode: Mode) -> None:
    world = play("cluster nodes=2", f"train steps=4 stages=2 mode={mode} every=0", "finish")
    assert run_of(world)[0] is RunState.DONE
    run = world.machine.board.run
    assert run is not None and run.training is not None
    assert run.training.checkpoint_every >= MIN_STEPS, "auto was resolved before the workers were told"
    assert all(w.spec == run.training for w in world.all_workers())


def test_when_nobody_is_left_to_write_the_model_the_run_ends_and_does_not_wait_for_ever() -> None:
    world = play("cluster nodes=1 replace=no", "train steps=2 stages=1", "steps 1", "hold", "part-step 1")
    while world.machine.board.run is None or world.machine.board.run.model_writer is None:
        assert world.pump_once(training=False), "the model is never asked for"
    world.kill_node(NodeId("n1"))
    world.pump(training=False)
    state, reason, detail = run_of(world)
    assert (state, reason) == (RunState.FAILED, RunReason.NO_NODES)
    assert "`local.replace: false`" in detail
    assert checkpoints_of(world) == (1,), "all steps are done and saved"


def checkpoints_of(world: World) -> tuple[int, ...]:
    assert world.machine.board.checkpoints is not None
    return world.machine.board.checkpoints.complete


@pytest.mark.parametrize(("count", "text"), [(1, "1 node has ended"), (2, "2 nodes have ended")])
def test_closing_says_how_many_nodes_have_ended(count: int, text: str) -> None:
    world = play(f"cluster nodes={count}", "close")
    assert (world.answers[1].ok, world.answers[1].text) == (True, text)


@pytest.mark.parametrize(("num", "told"), [(0, "0 forwards were"), (1, "1 forward was"), (2, "2 forwards were")])
def test_forwards_at_hand_are_told_in_good_english(num: int, told: str) -> None:
    world = play("cluster nodes=2", "train steps=8 stages=2", "steps 1")
    plan = world.machine.board.run.plan if world.machine.board.run else None
    assert plan is not None
    (worker_id, *_) = world.nodes[NodeId("n1")].workers
    worker = world.nodes[NodeId("n1")].workers[worker_id]
    start = len(world.trace)

    world.report(
        worker,
        TookOver(generation=plan.generation, step=1, pipeline_index=0, stage_index=1, forwards_at_hand=num),
    )
    world.pump(training=False)

    assert any(f"{told} at hand" in line for line in world.trace[start:])


# --- a coordinator that is cut off ------------------------------------------------------------------------------


def cut_off_world(*, uplink_patience_s: float) -> World:
    """Two nodes in the middle of a run, and no word from either any more."""
    player = Player(lambda world: None)
    for command in ("cluster nodes=2 lease=10", "train steps=40 stages=2", "steps 3", "hold"):
        player.perform(command)
    world = player.world
    assert world is not None
    world.machine.board.config = replace(world.machine.board.config, uplink_patience_s=uplink_patience_s)
    for node_id in ("n1", "n2"):
        player.perform(f"freeze {node_id}")
    return world


def states(world: World) -> set[NodeState]:
    return {node.state for node in world.machine.board.nodes.values()}


def test_while_no_node_at_all_is_heard_none_is_blamed_and_the_run_is_left_alone() -> None:
    world = cut_off_world(uplink_patience_s=600)
    world.pass_time(300)

    assert states(world) == {NodeState.ACTIVE}
    assert run_of(world)[0] is RunState.RUNNING
    assert sum("no node is heard any more" in line.text for line in world.told) == 1


def test_when_one_is_heard_again_the_other_has_a_lease_to_come_back() -> None:
    world = cut_off_world(uplink_patience_s=600)
    world.pass_time(300)
    for _ in range(10):
        assert states(world) == {NodeState.ACTIVE}
        world.handle(ev.AgentBeat(node_id=NodeId("n1"), silence_s={}))
        world.pass_time(1)
    world.pass_time(2)
    assert world.machine.board.nodes[NodeId("n1")].state is NodeState.ACTIVE
    assert world.machine.board.nodes[NodeId("n2")].state is NodeState.LOST


def test_the_patience_with_our_own_network_ends() -> None:
    world = cut_off_world(uplink_patience_s=60)
    world.pass_time(70)
    assert states(world) >= {NodeState.LOST}


def test_what_the_cloud_says_counts_all_the_same() -> None:
    world = cut_off_world(uplink_patience_s=600)
    world.pass_time(60)
    world.handle(ev.InstanceEnded(node_id=NodeId("n1"), reason=EndReason.PREEMPTED, at=world.now))
    assert world.machine.board.nodes[NodeId("n1")].state is NodeState.ENDED


def test_a_node_that_somebody_has_ended_by_hand_is_not_said_to_be_given_back() -> None:
    world = cut_off_world(uplink_patience_s=600)
    world.handle(ev.InstanceEnded(node_id=NodeId("n1"), reason=EndReason.USER, at=world.now))
    assert "n1 is gone: ended by somebody, not by Bamboo" in [line.text for line in world.told]
