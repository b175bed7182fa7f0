"""Workers that are forked: a real nursery with torch, real agents and workers; the nursery killed at bad moments."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from bamboo_agent.messages import StartWorker, StopWorker, TellWorker, WorkerExited, WorkerStarted
from bamboo_trainer import births
from bamboo_trainer.births import Birth, BirthError, BirthKind, Child
from bamboo_trainer.control import Prepare, Prepared, TrainingSpec, WorkerReady
from bamboo_trainer.plan import WorkerId

from tests.agent import facts_recipe
from tests.agent.coordinator_double import CoordinatorDouble
from tests.agent.node import WORKER, write_config
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux only")

SECOND = WorkerId("n1/2")
COLD = f"{sys.executable} -m bamboo_trainer"
MARK = "BAMBOO_TEST_NODE"


class Nursery:
    """This process asks it, as the local cloud does."""

    def __init__(self) -> None:
        self.link, end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {name: value for name, value in os.environ.items() if name != "BAMBOO_WORKER_COMMAND"}
        with end:
            self.process = subprocess.Popen(
                births.COMMAND, pass_fds=(end.fileno(),), env=births.environment_for(environment, end)
            )
        self.link.settimeout(60.0)
        assert self.link.recv(64) == births.READY

    def bear(self, birth: Birth, *files: int) -> Child:
        with births.adopting():
            births.ask(self.link, birth, files)
            return Child(births.pid_in(self.link.recv(births.MESSAGE_BYTES)))


class Node:
    """An agent, and whatever it starts."""

    def __init__(self, folder: Path, process: "Child | subprocess.Popen[bytes]") -> None:
        self.folder, self.process = folder, process

    @property
    def log(self) -> str:
        return (self.folder / "agent.log").read_text()

    def nursery(self) -> psutil.Process:
        """One that has loaded."""
        return psutil.Process(int(self.log.rsplit("the nursery has loaded, process ", 1)[1].split()[0]))

    def end(self) -> None:
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    nursery.link.close()
    assert nursery.process.wait(20) == 0


@pytest.fixture
def node(tmp_path: Path, nursery: Nursery, coordinator: CoordinatorDouble) -> Iterator[Node]:
    """Born with a nursery of its own, as a node of the local cloud is."""
    write_config(tmp_path, coordinator)
    birth = Birth(
        command=(sys.executable, "-m", "bamboo_agent"),
        environment={**os.environ, "BAMBOO_NODE_CONFIG": str(tmp_path / "config.json"), MARK: str(tmp_path)},
        folder=str(tmp_path),
        kind=BirthKind.NODE,
    )
    with (tmp_path / "agent.log").open("wb") as log:
        node = Node(tmp_path, nursery.bear(birth, log.fileno()))
    yield node
    node.end()


def start_agent(folder: Path, coordinator: CoordinatorDouble, **environment: str) -> Node:
    write_config(folder, coordinator)
    with (folder / "agent.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "bamboo_agent"],
            cwd=folder,
            env=os.environ | {"BAMBOO_NODE_CONFIG": str(folder / "config.json"), MARK: str(folder)} | environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    return Node(folder, process)


def start_worker(coordinator: CoordinatorDouble, worker_id: WorkerId = WORKER) -> psutil.Process:
    """Returns when it is ready."""
    wait_until(lambda: bool(coordinator.joins), "the agent to join")
    before = len(coordinator.said(WorkerReady))
    coordinator.tell(StartWorker(worker_id=worker_id))
    wait_until(lambda: len(coordinator.said(WorkerReady)) > before, "the worker to be ready")
    (started,) = [s for s in coordinator.said(WorkerStarted) if s.worker_id == worker_id]
    assert started.pid == coordinator.said(WorkerReady)[-1].pid
    return psutil.Process(started.pid)


def prepare(coordinator: CoordinatorDouble, worker_id: WorkerId = WORKER, **options: object) -> None:
    spec = TrainingSpec(
        run_id="r1",
        recipe=facts_recipe.__file__,
        recipe_options=options,
        num_steps=1,
        num_microbatches=1,
        microbatch_size=1,
        seed=0,
        checkpoint_url="memory://nowhere",
        checkpoint_every=1,
    )
    coordinator.tell(TellWorker(worker_id=worker_id, message=Prepare(spec=spec)))


def exit_of(coordinator: CoordinatorDouble) -> WorkerExited:
    wait_until(lambda: bool(coordinator.said(WorkerExited)), "the exit to be told")
    (exited,) = coordinator.said(WorkerExited)
    return exited


def marked(folder: Path) -> list[int]:
    """All processes of a node, whoever started them."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == str(folder):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def was_forked(node: Node, worker: psutil.Process) -> bool:
    """It has the very pages of its node's nursery: a cold process maps its libraries elsewhere."""
    places = [
        next(line for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if "libtorch_cpu" in line)
        for pid in (worker.pid, node.nursery().pid)
    ]
    return places[0].split()[0] == places[1].split()[0]


# --- what a forked worker is ---


def test_a_forked_worker_finds_what_a_cold_one_finds_but_for_what_is_drawn(
    tmp_path: Path, node: Node, coordinator: CoordinatorDouble
) -> None:
    def facts_of(worker_id: WorkerId) -> dict[str, dict[str, object]]:
        path = tmp_path / f"{worker_id.replace('/', '-')}.json"
        prepare(coordinator, worker_id, facts=str(path))
        wait_until(lambda: path.exists() and path.read_text().endswith("}"), "the facts")
        read: dict[str, dict[str, object]] = json.loads(path.read_text())
        return read

    assert was_forked(node, start_worker(coordinator))
    start_worker(coordinator, SECOND)
    forked, second = facts_of(WORKER), facts_of(SECOND)
    node.end()
    cold_node = start_agent(tmp_path, coordinator, BAMBOO_WORKER_COMMAND=COLD)
    try:
        wait_until(lambda: len(coordinator.joins) == 2, "the other agent to join")
        third = WorkerId("n1/3")
        start_worker(coordinator, third)
        cold = facts_of(third)
    finally:
        cold_node.end()
    for fact, found in cold["settled"].items():
        assert forked["settled"][fact] == found, fact
    assert all(a != b for a, b in zip(forked["drawn"], second["drawn"], strict=True))


def test_a_forked_worker_is_a_child_in_the_group_of_its_node_as_all_of_it_is(
    tmp_path: Path, node: Node, coordinator: CoordinatorDouble
) -> None:
    worker = start_worker(coordinator)
    assert worker.ppid() == node.process.pid
    assert sorted(marked(tmp_path)) == sorted((node.process.pid, node.nursery().pid, worker.pid))
    assert {os.getpgid(pid) for pid in marked(tmp_path)} == {node.process.pid}
    os.killpg(node.process.pid, signal.SIGKILL)
    wait_until(lambda: marked(tmp_path) == [], "all of it to vanish")


def test_all_workers_of_a_node_are_born_of_its_one_nursery(node: Node, coordinator: CoordinatorDouble) -> None:
    wait_until(lambda: bool(coordinator.joins), "the agent to join")
    for accelerator, worker_id in enumerate((WORKER, SECOND)):
        coordinator.tell(StartWorker(worker_id=worker_id, accelerator=accelerator))
    wait_until(lambda: len(coordinator.said(WorkerReady)) == 2, "both workers to be ready")
    assert {started.worker_id for started in coordinator.said(WorkerStarted)} == {WORKER, SECOND}
    assert "is started cold" not in node.log


def test_its_exit_is_told_with_its_code_and_the_end_of_its_log(node: Node, coordinator: CoordinatorDouble) -> None:
    start_worker(coordinator)
    prepare(coordinator, say="last words", exit_code=7)
    exited = exit_of(coordinator)
    assert exited.exit_code == 7
    assert exited.log_tail.endswith("last words\n")
    assert "listens on" in exited.log_tail


def test_a_crash_is_told_with_its_signal(node: Node, coordinator: CoordinatorDouble) -> None:
    start_worker(coordinator).send_signal(signal.SIGSEGV)
    assert exit_of(coordinator).exit_code == -signal.SIGSEGV


def test_a_frozen_one_is_fenced_at_once(node: Node, coordinator: CoordinatorDouble) -> None:
    start_worker(coordinator).suspend()
    coordinator.tell(StopWorker(worker_id=WORKER, fence=True, reason="its lease ran out"))
    assert exit_of(coordinator).exit_code == -signal.SIGKILL


def test_one_that_is_asked_exits_by_itself(node: Node, coordinator: CoordinatorDouble) -> None:
    start_worker(coordinator)
    coordinator.tell(StopWorker(worker_id=WORKER, fence=False, reason="no longer needed"))
    assert exit_of(coordinator).exit_code == 0


@pytest.mark.parametrize("frozen", [False, True])
def test_nothing_outlives_an_agent_that_is_killed(
    tmp_path: Path, node: Node, coordinator: CoordinatorDouble, frozen: bool
) -> None:
    worker = start_worker(coordinator)
    if frozen:
        worker.suspend()
        node.nursery().suspend()
    os.kill(node.process.pid, signal.SIGKILL)
    wait_until(lambda: marked(tmp_path) == [], "all of it to end")


# --- when the nursery is lost ---


def test_workers_live_on_when_the_nursery_is_killed_and_there_is_another_one(
    node: Node, coordinator: CoordinatorDouble
) -> None:
    worker = start_worker(coordinator)
    first = node.nursery()
    first.kill()
    start_worker(coordinator, SECOND)  # at once, there is none now
    wait_until(lambda: node.log.count("the nursery has loaded") == 2, "the next nursery")
    assert node.nursery().pid != first.pid
    assert was_forked(node, start_worker(coordinator, WorkerId("n1/3")))
    prepare(coordinator)
    wait_until(lambda: bool(coordinator.said(Prepared)), "the first worker to work on")
    assert coordinator.said(WorkerExited) == []
    worker.kill()
    assert (exit_of(coordinator).worker_id, exit_of(coordinator).exit_code) == (WORKER, -signal.SIGKILL)


def test_a_nursery_that_does_not_answer_is_killed_and_the_worker_started_cold(
    node: Node, coordinator: CoordinatorDouble
) -> None:
    wait_until(lambda: "the nursery has loaded" in node.log, "the nursery")
    node.nursery().suspend()
    worker = start_worker(coordinator)
    assert "is started cold: the nursery does not answer" in node.log
    assert worker.ppid() == node.process.pid
    assert coordinator.said(WorkerExited) == []


def test_a_nursery_that_is_killed_while_it_loads_leaves_a_cold_start(
    tmp_path: Path, coordinator: CoordinatorDouble
) -> None:
    never = "import signal, sys\nif 'bamboo_trainer.nursery' in sys.orig_argv: signal.pause()\n"
    (tmp_path / "sitecustomize.py").write_text(never)  # it shall not be done before it is killed
    node = start_agent(tmp_path, coordinator, PYTHONPATH=str(tmp_path))
    try:
        wait_until(lambda: bool(coordinator.joins), "the agent to join")
        coordinator.tell(StartWorker(worker_id=WORKER))
        (loading,) = psutil.Process(node.process.pid).children()
        loading.kill()
        wait_until(lambda: bool(coordinator.said(WorkerReady)), "the worker to be ready")
        assert "workers are started cold from now on" in node.log
    finally:
        node.end()


def test_a_worker_that_is_fenced_before_it_is_born_is_never_started(node: Node, coordinator: CoordinatorDouble) -> None:
    wait_until(lambda: bool(coordinator.joins) and "the nursery has loaded" in node.log, "the node")
    node.nursery().suspend()
    coordinator.tell(StartWorker(worker_id=WORKER))
    coordinator.tell(StopWorker(worker_id=WORKER, fence=True, reason="second thoughts"))
    assert exit_of(coordinator).exit_code == 127
    assert coordinator.said(WorkerStarted) == []


def test_a_node_without_torch_says_so_as_ever(tmp_path: Path, coordinator: CoordinatorDouble) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')")
    node = start_agent(tmp_path, coordinator, PYTHONPATH=str(tmp_path))
    try:
        wait_until(lambda: bool(coordinator.joins), "the agent to join")
        coordinator.tell(StartWorker(worker_id=WORKER))
        exited = exit_of(coordinator)
        assert exited.exit_code == 1
        assert "No module named 'torch'" in exited.log_tail
    finally:
        node.end()


# --- births ---


def test_a_child_that_others_have_reaped_has_ended() -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", ""]) as process:
        child = Child(process.pid)
    assert (child.poll(), child.wait()) == (births.UNKNOWN_EXIT, births.UNKNOWN_EXIT)
    child.kill()


def a_worker(folder: Path, **environment: str) -> Birth:
    return Birth(command=("worker",), environment=environment, folder=str(folder), kind=BirthKind.WORKER)


def test_an_environment_that_has_no_room_is_refused(tmp_path: Path, nursery: Nursery) -> None:
    with pytest.raises(BirthError, match="an environment of more than"):
        nursery.bear(a_worker(tmp_path, LONG="." * (1 << 16)), 1, 2)
    assert nursery.process.poll() is None


def test_a_nursery_with_threads_bears_nobody(tmp_path: Path) -> None:
    ours, end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    program = (
        "import socket, sys, threading; from bamboo_trainer import bearing;"
        "threading.Thread(target=threading.Event().wait, daemon=True).start();"
        "bearing.serve(socket.socket(fileno=int(sys.argv[1])))"
    )
    with (
        ours,
        subprocess.Popen([sys.executable, "-c", program, str(end.fileno())], pass_fds=(end.fileno(),)) as process,
    ):
        end.close()
        assert ours.recv(64) == births.READY
        with births.adopting():
            births.ask(ours, a_worker(tmp_path), (1, 2))
            with pytest.raises(BirthError, match="2 threads"):
                births.pid_in(ours.recv(births.MESSAGE_BYTES))
        process.kill()


def test_nobody_is_born_of_whom_the_asker_is_not_told(tmp_path: Path) -> None:
    ours, end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    program = (
        "import pathlib, socket, sys; from bamboo_trainer import bearing;"
        "bearing.serve(socket.socket(fileno=int(sys.argv[1]))) and pathlib.Path('born').touch()"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(end.fileno())], pass_fds=(end.fileno(),)) as process:
        end.close()
        assert ours.recv(64) == births.READY
        others = {child.pid for child in psutil.Process().children()}
        with births.adopting(), (tmp_path / "log").open("wb") as log:
            os.kill(process.pid, signal.SIGSTOP)  # it shall find the question and nobody to answer
            births.ask(ours, a_worker(tmp_path), (log.fileno(), log.fileno()))
            ours.close()
            os.kill(process.pid, signal.SIGCONT)
            assert process.wait(20) == 0
        (newborn,) = {child.pid for child in psutil.Process().children()} - others
        assert Child(newborn).wait() == 1
    assert not (tmp_path / "born").exists()
