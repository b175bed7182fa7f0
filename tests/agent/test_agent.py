"""A real agent process, real workers (doubles of the trainer) and a real WebSocket server."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from bamboo_agent.messages import (
    Leave,
    MetadataTrouble,
    Refused,
    StartWorker,
    StopWorker,
    WorkerExited,
    WorkerStarted,
)
from bamboo_trainer.control import Prepared, StepCommitted, WorkerBeat, WorkerFailed, WorkerReady

from tests.agent.coordinator_double import SECRET, CoordinatorDouble
from tests.agent.node import WORKER, Node, prepare, start_node, write_config
from tests.waiting import wait_until


@pytest.fixture
def node(tmp_path: Path, coordinator: CoordinatorDouble) -> Iterator[Node]:
    write_config(tmp_path, coordinator)
    node = start_node(tmp_path)
    yield node
    node.vanish()


@pytest.fixture
def ready(node: Node, coordinator: CoordinatorDouble) -> Node:
    """The node, with one worker that has said it is ready."""
    wait_until(lambda: bool(coordinator.joins), "the agent to join")
    coordinator.tell(StartWorker(worker_id=WORKER))
    wait_until(lambda: bool(coordinator.said(WorkerReady)), "the worker to be ready")
    return node


def exits(coordinator: CoordinatorDouble) -> list[WorkerExited]:
    wait_until(lambda: bool(coordinator.said(WorkerExited)), "the exit to be told")
    return coordinator.said(WorkerExited)


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_join_says_who_the_node_is_and_a_worker_is_started_when_asked(
    ready: Node, coordinator: CoordinatorDouble
) -> None:
    (join,) = coordinator.joins
    assert (join.node_id, join.instance_id, join.zone, join.pid) == ("n1", "i-1", "z1", ready.process.pid)
    assert join.workers == ()
    (started,), (said,) = coordinator.said(WorkerStarted), coordinator.said(WorkerReady)
    assert (started.worker_id, started.pid) == (WORKER, said.pid)
    assert said.address == "127.0.0.1"


def test_a_worker_is_in_the_process_group_of_its_node_and_knows_its_place(ready: Node) -> None:
    (worker,) = ready.workers()
    assert os.getpgid(worker.pid) == ready.process.pid
    expected = {
        "BAMBOO_WORKER_ID": WORKER,
        "BAMBOO_NODE_ID": "n1",
        "BAMBOO_LISTEN_ADDRESS": "127.0.0.1",
        "BAMBOO_BEAT_S": "0.05",
        "BAMBOO_LINK_SECRET": SECRET,
    }
    assert expected.items() <= worker.environ().items()


def test_a_join_after_a_cut_tells_the_workers_state(ready: Node, coordinator: CoordinatorDouble) -> None:
    coordinator.tell(prepare())
    wait_until(lambda: bool(coordinator.said(Prepared)), "the worker to prepare")
    coordinator.cut()
    wait_until(lambda: len(coordinator.joins) == 2, "the agent to join again")
    first, second = coordinator.joins
    (state,) = second.workers
    assert second.boot_id == first.boot_id
    assert (state.worker_id, state.ready, state.port, state.run_id) == (WORKER, True, 7, "r1")


def test_beats_of_a_worker_are_kept_by_the_agent(ready: Node, coordinator: CoordinatorDouble) -> None:
    coordinator.tell(prepare(beat=1, commit=[0, 1]))
    wait_until(lambda: bool(coordinator.said(StepCommitted)), "the worker to commit")
    assert coordinator.said(WorkerBeat) == []


def test_an_exit_is_told_with_its_code_and_the_end_of_the_log(ready: Node, coordinator: CoordinatorDouble) -> None:
    coordinator.tell(prepare(print="last words", exit=3))
    (exited,) = exits(coordinator)
    assert (exited.worker_id, exited.exit_code) == (WORKER, 3)
    assert exited.log_tail.endswith("the worker double runs\nlast words\n")


def test_a_crash_is_told_with_its_traceback(ready: Node, coordinator: CoordinatorDouble) -> None:
    coordinator.tell(prepare(crash="oh no"))
    (exited,) = exits(coordinator)
    assert exited.exit_code == 1
    assert "RuntimeError: oh no" in exited.log_tail


def test_the_end_of_a_long_log_is_told_and_no_more(ready: Node, coordinator: CoordinatorDouble) -> None:
    coordinator.tell(prepare(print="\n".join(f"line {n}" for n in range(5000)), exit=0))
    (exited,) = exits(coordinator)
    assert len(exited.log_tail) <= 8192
    assert exited.log_tail.startswith("line ")
    assert exited.log_tail.endswith("line 4999\n")


def test_what_a_worker_said_last_is_told_before_its_exit(ready: Node, coordinator: CoordinatorDouble) -> None:
    coordinator.tell(prepare(commit=[0, 3000], fail="bad recipe", exit=1))
    exits(coordinator)
    kinds = [type(message) for message in coordinator.said(object)][-2:]
    assert kinds == [WorkerFailed, WorkerExited]
    assert len(coordinator.said(StepCommitted)) == 3000


def test_what_arrives_just_after_a_workers_death_is_told_before_its_exit(
    ready: Node, coordinator: CoordinatorDouble
) -> None:
    coordinator.tell(prepare(fail_late="said by its child when the worker was dead", exit=1))
    exits(coordinator)
    kinds = [type(message) for message in coordinator.said(object)][-2:]
    assert kinds == [WorkerFailed, WorkerExited]


def test_garbage_from_a_worker_is_logged_and_the_rest_still_heard(ready: Node, coordinator: CoordinatorDouble) -> None:
    coordinator.tell(prepare(garble=1, commit=[0, 1]))
    wait_until(lambda: bool(coordinator.said(StepCommitted)), "the worker to commit")
    assert "worker n1/1 said something unknown" in ready.log


def test_a_frozen_worker_falls_silent_and_is_fenced(ready: Node, coordinator: CoordinatorDouble) -> None:
    coordinator.tell(prepare(freeze=1))
    wait_until(lambda: coordinator.silence_s().get(WORKER, 0.0) > 0.4, "silence")
    coordinator.tell(StopWorker(worker_id=WORKER, fence=True, reason="its lease ran out"))
    assert [(e.worker_id, e.exit_code) for e in exits(coordinator)] == [(WORKER, -signal.SIGKILL)]
    wait_until(lambda: coordinator.silence_s() == {}, "beats without the worker")


def test_a_worker_that_is_asked_exits_by_itself(ready: Node, coordinator: CoordinatorDouble) -> None:
    coordinator.tell(StopWorker(worker_id=WORKER, fence=False, reason="no longer needed"))
    assert [e.exit_code for e in exits(coordinator)] == [0]


def test_a_worker_id_is_used_for_one_process_only(ready: Node, coordinator: CoordinatorDouble) -> None:
    coordinator.tell(StartWorker(worker_id=WORKER))
    coordinator.tell(prepare(exit=0))
    exits(coordinator)
    coordinator.tell(StartWorker(worker_id=WORKER))
    second = type(WORKER)("n1/2")
    coordinator.tell(StartWorker(worker_id=second))
    wait_until(lambda: len(coordinator.said(WorkerReady)) == 2, "the second worker")
    assert [started.worker_id for started in coordinator.said(WorkerStarted)] == [WORKER, second]


def test_a_thousand_messages_survive_five_cuts_once_each_and_in_order(
    ready: Node, coordinator: CoordinatorDouble
) -> None:
    coordinator.cut_at = [100, 250, 400, 401, 900]
    coordinator.tell(prepare(commit=[0, 1000]))
    wait_until(lambda: len(coordinator.said(StepCommitted)) >= 1000, "all steps")
    assert [said.summary.step for said in coordinator.said(StepCommitted)] == list(range(1000))
    assert (len(coordinator.joins), coordinator.gaps, coordinator.repeated) == (6, [], 0)


def test_what_happens_while_the_coordinator_is_away_is_told_when_it_returns(
    ready: Node, coordinator: CoordinatorDouble
) -> None:
    coordinator.tell(prepare(commit=[0, 1]))
    wait_until(lambda: bool(coordinator.said(StepCommitted)), "the first step")
    (worker,) = ready.workers()
    coordinator.close()
    wait_until(lambda: "no link to the coordinator" in ready.log, "the agent to see it gone")
    worker.kill()
    wait_until(lambda: "worker n1/1 ended" in ready.log, "the agent to see the exit")
    coordinator.open()
    assert [e.exit_code for e in exits(coordinator)] == [-signal.SIGKILL]
    assert coordinator.joins[-1].workers == ()
    assert coordinator.repeated == 0
    assert "linked again after" in ready.log


def test_an_agent_that_is_refused_for_good_ends_with_its_workers(ready: Node, coordinator: CoordinatorDouble) -> None:
    (worker,) = ready.workers()
    worker.suspend()  # it could not answer a polite request
    coordinator.refusal = Refused(reason="the cluster is another one now", final=True)
    coordinator.cut()
    assert ready.process.wait(20) == 1
    assert is_gone(worker.pid)
    assert "the cluster is another one now" in ready.log
    assert "worker n1/1 is killed: the agent ends" in ready.log and "did not exit within" not in ready.log


def test_an_agent_that_is_refused_for_now_tries_again(node: Node, coordinator: CoordinatorDouble) -> None:
    coordinator.refusal = Refused(reason="not yet", final=False)
    wait_until(lambda: bool(coordinator.joins) and "not yet" in node.log, "the refusal")
    coordinator.refusal = None
    wait_until(lambda: bool(coordinator.beats), "the link")


def test_a_coordinator_of_a_newer_protocol_is_named_as_such_and_tried_again(
    node: Node, coordinator: CoordinatorDouble
) -> None:
    coordinator.first_words = '{"kind": "hello_from_the_future"}'
    wait_until(lambda: "protocol version 2) cannot read: install the same version" in node.log, "the log line")
    coordinator.first_words = None
    wait_until(lambda: bool(coordinator.beats), "the link")


def test_a_wrong_secret_is_kept_out_until_the_file_has_the_right_one(
    tmp_path: Path, coordinator: CoordinatorDouble
) -> None:
    write_config(tmp_path, coordinator, secret="wrong")
    node = start_node(tmp_path)
    try:
        wait_until(lambda: "HTTP 401" in node.log, "the refusal")
        assert coordinator.joins == []
        write_config(tmp_path, coordinator)
        wait_until(lambda: bool(coordinator.beats), "the link")
    finally:
        node.vanish()


def test_a_node_that_is_told_to_leave_ends_in_good_order(ready: Node, coordinator: CoordinatorDouble) -> None:
    (worker,) = ready.workers()
    coordinator.tell(Leave(reason="no longer wanted"))
    assert ready.process.wait(20) == 0
    assert is_gone(worker.pid)


@pytest.mark.parametrize("frozen", [False, True])
def test_no_worker_outlives_an_agent_that_is_killed(ready: Node, coordinator: CoordinatorDouble, frozen: bool) -> None:
    (worker,) = ready.workers()
    if frozen:
        if sys.platform != "linux":
            pytest.skip("only Linux ends a stopped process whose parent dies")
        worker.suspend()
    os.kill(ready.process.pid, signal.SIGKILL)
    wait_until(lambda: is_gone(worker.pid), "the worker to end")


def test_a_metadata_service_that_is_not_there_is_told_once(ready: Node, coordinator: CoordinatorDouble) -> None:
    wait_until(lambda: bool(coordinator.said(MetadataTrouble)), "the trouble")
    seen = len(coordinator.beats)
    wait_until(lambda: len(coordinator.beats) > seen + 5, "several polls")
    (trouble,) = coordinator.said(MetadataTrouble)
    assert trouble.detail.startswith("http://127.0.0.1:9: cannot be reached")


def test_a_worker_command_that_does_not_exist_is_an_exit(tmp_path: Path, coordinator: CoordinatorDouble) -> None:
    write_config(tmp_path, coordinator)
    node = start_node(tmp_path, worker_command="/no/such/program")
    try:
        wait_until(lambda: bool(coordinator.joins), "the agent to join")
        coordinator.tell(StartWorker(worker_id=WORKER))
        (exited,) = exits(coordinator)
        assert exited.exit_code == 127
        assert "/no/such/program" in exited.log_tail
    finally:
        node.vanish()


def test_an_agent_without_a_configuration_says_what_it_wants(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"cluster_id": "c-1"}')
    for value, code, words in (("", 2, "set BAMBOO_NODE_CONFIG"), (str(tmp_path / "config.json"), 1, "node_id: Field")):
        ended = subprocess.run(
            [sys.executable, "-m", "bamboo_agent"],
            env=os.environ | {"BAMBOO_NODE_CONFIG": value},
            capture_output=True,
            text=True,
            timeout=20,
        )
        assert ended.returncode == code
        assert words in ended.stderr
