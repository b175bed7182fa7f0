"""A node with several accelerators: a worker on each, by a real agent."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from bamboo_agent.accelerators import devices, environment_of
from bamboo_agent.messages import StartWorker, StopWorker, WorkerExited, WorkerStarted
from bamboo_trainer.control import Prepared, WorkerReady
from bamboo_trainer.plan import WorkerId

from tests.agent.coordinator_double import CoordinatorDouble
from tests.agent.node import Node, prepare, start_node, write_config
from tests.agent.test_agent import is_gone
from tests.waiting import wait_until

FIRST, SECOND = WorkerId("n1/1"), WorkerId("n1/2")


@pytest.fixture
def coordinator() -> Iterator[CoordinatorDouble]:
    double = CoordinatorDouble()
    yield double
    double.close()


@pytest.fixture
def node(tmp_path: Path, coordinator: CoordinatorDouble, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    """With two workers that are ready, of a machine whose third and seventh GPU are visible."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2, GPU-7")
    write_config(tmp_path, coordinator, num_accelerators=2)
    node = start_node(tmp_path)
    wait_until(lambda: bool(coordinator.joins), "the agent to join")
    for accelerator, worker_id in enumerate((FIRST, SECOND)):
        coordinator.tell(StartWorker(worker_id=worker_id, accelerator=accelerator))
    wait_until(lambda: len(coordinator.said(WorkerReady)) == 2, "both workers to be ready")
    yield node
    node.vanish()


def pid_of(coordinator: CoordinatorDouble, worker_id: WorkerId) -> int:
    (started,) = [started for started in coordinator.said(WorkerStarted) if started.worker_id == worker_id]
    return started.pid


def test_each_worker_sees_its_own_device(node: Node, coordinator: CoordinatorDouble) -> None:
    seen = {worker.environ()["BAMBOO_WORKER_ID"]: worker.environ()["CUDA_VISIBLE_DEVICES"] for worker in node.workers()}
    assert seen == {FIRST: "2", SECOND: "GPU-7"}
    assert coordinator.joins[0].num_accelerators == 2


def test_the_exit_of_one_worker_leaves_the_other_alone_and_is_told_with_its_own_log(
    node: Node, coordinator: CoordinatorDouble
) -> None:
    coordinator.tell(prepare(FIRST, print="the first one speaks"))
    wait_until(lambda: bool(coordinator.said(Prepared)), "the first to prepare")
    coordinator.tell(prepare(SECOND, print="the second one dies", exit=3))
    wait_until(lambda: bool(coordinator.said(WorkerExited)), "the exit to be told")

    (exited,) = coordinator.said(WorkerExited)
    assert (exited.worker_id, exited.exit_code) == (SECOND, 3)
    assert exited.log_tail == "the worker double runs\nthe second one dies\n"
    assert [worker.pid for worker in node.workers()] == [pid_of(coordinator, FIRST)]
    wait_until(lambda: set(coordinator.silence_s()) == {FIRST}, "beats of the one that is left")


def test_another_worker_on_the_same_accelerator_sees_the_same_device(
    node: Node, coordinator: CoordinatorDouble
) -> None:
    coordinator.tell(StopWorker(worker_id=SECOND, fence=True, reason="it hangs"))
    wait_until(lambda: bool(coordinator.said(WorkerExited)), "its end")
    third = WorkerId("n1/3")
    coordinator.tell(StartWorker(worker_id=third, accelerator=1))
    wait_until(lambda: len(coordinator.said(WorkerReady)) == 3, "the next one to be ready")
    (worker,) = [w for w in node.workers() if w.pid == pid_of(coordinator, third)]
    assert worker.environ()["CUDA_VISIBLE_DEVICES"] == "GPU-7"


def test_a_frozen_worker_falls_silent_alone(node: Node, coordinator: CoordinatorDouble) -> None:
    os.kill(pid_of(coordinator, SECOND), signal.SIGSTOP)
    coordinator.tell(prepare(FIRST, beat=1))
    wait_until(lambda: coordinator.silence_s().get(SECOND, 0.0) > 0.3, "silence of the second")
    coordinator.tell(prepare(FIRST, beat=1))

    def heard_from_the_first_since() -> bool:
        silence_s = coordinator.silence_s()
        return silence_s[FIRST] + 0.3 < silence_s[SECOND]

    wait_until(heard_from_the_first_since, "a beat of the first")


def test_both_go_with_the_agent(node: Node, coordinator: CoordinatorDouble) -> None:
    workers = node.workers()
    os.kill(node.process.pid, signal.SIGKILL)
    wait_until(lambda: all(is_gone(worker.pid) for worker in workers), "both to end")


def test_a_join_after_a_cut_tells_of_both(node: Node, coordinator: CoordinatorDouble) -> None:
    coordinator.cut()
    wait_until(lambda: len(coordinator.joins) == 2, "the agent to join again")
    assert {worker.worker_id for worker in coordinator.joins[1].workers} == {FIRST, SECOND}


def test_a_node_that_is_not_told_counts_the_devices_of_its_machine(
    tmp_path: Path, coordinator: CoordinatorDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    write_config(tmp_path, coordinator)
    node = start_node(tmp_path)
    try:
        wait_until(lambda: bool(coordinator.joins), "the agent to join")
        assert coordinator.joins[0].num_accelerators == 3
    finally:
        node.vanish()


def test_devices_are_those_that_are_visible_else_all_of_the_driver(tmp_path: Path) -> None:
    for bus in ("0000:17:00.0", "0000:ca:00.0"):
        (tmp_path / bus).mkdir()
    assert devices({}, driver=tmp_path) == ("0", "1")
    assert devices({"CUDA_VISIBLE_DEVICES": "1"}, driver=tmp_path) == ("1",)
    assert devices({"CUDA_VISIBLE_DEVICES": ""}, driver=tmp_path) == ()
    assert devices({}, driver=tmp_path / "none") == ()


def test_without_a_device_nothing_is_said_of_one_and_few_are_shared_in_turn() -> None:
    assert environment_of(1, ()) == {}
    assert [environment_of(k, ("5", "6"))["CUDA_VISIBLE_DEVICES"] for k in range(3)] == ["5", "6", "5"]
