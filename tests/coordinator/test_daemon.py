"""The coordinator as a process, with the real local cloud and real agents; only the workers compute nothing."""

import asyncio
import os
import random
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from bamboo_agent.messages import PROTOCOL_VERSION, Acknowledge, Envelope, Hint, Join, Welcome, decode_to_agent
from bamboo_trainer.control import encode
from bamboo_trainer.plan import NodeId
from sqlalchemy import select, update
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from bamboo_cli import paths
from bamboo_cli.config import JobConfig, LocalCloudConfig
from bamboo_cli.coordinator import daemon, lock, reader, schema, store
from bamboo_cli.coordinator.status import ClusterStatus, RunStatus
from bamboo_cli.coordinator.store import RequestKind, RequestState
from bamboo_cli.errors import StateError
from bamboo_cli.providers.choose import provider_of_cloud
from bamboo_cli.providers.local_cloud import processes
from tests.waiting import wait_until

LEASE_S = 5.0
DOUBLE = Path(__file__).with_name("training_double.py")


@dataclass
class Cluster:
    """What a user of the command line could do to it."""

    folder: Path
    job: JobConfig

    @property
    def path(self) -> Path:
        return store.state_path(self.folder)

    @property
    def status(self) -> ClusterStatus:
        return reader.read_status(self.path, now=time.time())

    @property
    def run(self) -> RunStatus:
        (run,) = reader.read_runs(self.path)
        return run

    @property
    def story(self) -> list[str]:
        return [event.text for event in reader.read_events(self.path)]

    def start(self) -> int:
        return daemon.start(self.folder)

    def kill(self) -> None:
        """As if the machine's memory had run out."""
        pid = lock.owner(self.folder)
        assert pid is not None
        process = psutil.Process(pid)
        process.kill()
        wait_until(lambda: not lock.is_locked(self.folder), "the coordinator's death")

    def ask(self, kind: RequestKind, **payload: Any) -> str:
        request_id = store.make_request(self.path, kind, payload)
        wait_until(
            lambda: store.request_outcome(self.path, request_id).state is not RequestState.PENDING,
            f"an answer to {kind}",
        )
        answer = store.request_outcome(self.path, request_id)
        assert answer.state is RequestState.DONE, answer.outcome
        return answer.outcome

    def await_nodes(self) -> None:
        wanted = self.status.wanted_nodes
        wait_until(lambda: sum(node.state == "standby" for node in self.status.nodes) == wanted, "the nodes")

    def train(self, steps: int = 60) -> str:
        job = self.job.model_copy(update={"steps": steps})
        return self.ask(RequestKind.TRAIN, job_text="", job=job.model_dump(mode="json"))

    def await_end(self) -> RunStatus:
        wait_until(lambda: self.run.ended_at is not None, "the end of the run")
        return self.run

    def freeze(self, instance_id: str) -> None:
        for process in processes.marked(processes.INSTANCE_VARIABLE, instance_id):
            process.suspend()

    def left_behind(self) -> tuple[str, ...]:
        return provider_of_cloud("local").left_behind(self.status.cluster_id)

    def secret_and_port(self) -> tuple[str, int]:
        row = self._row()
        return row.secret, row.port

    @property
    def heartbeat_at(self) -> float:
        """The coordinator's last sign of life in the state file."""
        return float(self._row().heartbeat_at)

    def _row(self) -> Any:
        engine = store.open_for_reading(self.path)
        with store.reading(engine) as connection:
            row = connection.execute(select(schema.cluster)).one()
        engine.dispose()
        return row


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setenv("BAMBOO_HOME", str(tmp_path))
    monkeypatch.setenv("BAMBOO_WORKER_COMMAND", f"{sys.executable} -E {DOUBLE}")
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:9")
    job = JobConfig(
        name="demo",
        recipe="mlp",
        recipe_options={"step_s": 0.02},
        steps=60,
        global_batch_size=4,
        microbatch_size=1,
        stages=2,
        lease_s=LEASE_S,
        local=LocalCloudConfig(boot_delay_s=0.0),
    )
    folder = paths.cluster_dir("demo")
    cluster_id = store.create_cluster(
        folder, name="demo", cloud="local", job_text="", job=job.model_dump(mode="json"), wanted_nodes=2
    )
    try:
        yield Cluster(folder=folder, job=job)
    finally:
        _end_everything(cluster_id, tmp_path)


def _end_everything(cluster_id: str, home: Path) -> None:
    """By the marks that every process of the cluster, and of its cloud, carries."""
    for process in psutil.process_iter():
        try:
            marked = process.environ().get("BAMBOO_CLUSTER") == cluster_id
            if marked or (str(home) in " ".join(process.cmdline()) and process.pid != os.getpid()):
                process.kill()
        except psutil.Error:
            continue


def test_a_run_survives_a_preemption_and_down_leaves_nothing(cluster: Cluster) -> None:
    cluster.start()
    cluster.await_nodes()
    run_id = cluster.train()
    wait_until(lambda: cluster.run.committed_steps > 5, "some steps")

    cluster.ask(RequestKind.PREEMPT, node_id="n2", notice_s=None)
    run = cluster.await_end()

    assert (run.run_id, run.state, run.committed_steps) == (run_id, "done", 60)
    assert (run.preemptions, run.failovers, run.steps_rerun) == (1, 1, 0)
    assert [step.step for step in reader.read_steps(cluster.path, run_id)] == list(range(60))
    assert run.model_url is not None and run.checkpoint_step == 59
    assert len(reader.read_plans(cluster.path, run_id)) >= 2

    cluster.ask(RequestKind.DOWN)
    wait_until(lambda: not lock.is_locked(cluster.folder), "the coordinator's own end")

    assert cluster.status.state == "closed"
    wait_until(lambda: cluster.left_behind() == (), "nothing to be left")
    charges = reader.read_charges(cluster.path, now=time.time())
    assert {charge.node_id for charge in charges} == {node.node_id for node in cluster.status.nodes}
    assert reader.read_charges(cluster.path, now=time.time() + 3600) == charges, "the bill still runs"


@pytest.mark.timeout(300)
def test_a_coordinator_that_is_killed_again_and_again_loses_and_repeats_nothing(cluster: Cluster) -> None:
    moments = random.Random(3)
    cluster.start()
    cluster.await_nodes()
    run_id = cluster.train(steps=300)
    instances = [(node.node_id, node.instance_id) for node in cluster.status.nodes]

    for _ in range(5):
        goal = cluster.run.committed_steps + moments.randint(1, 10)
        wait_until(lambda goal=goal: cluster.run.committed_steps >= goal, "progress")  # type: ignore[misc]
        cluster.kill()
        cluster.start()
    run = cluster.await_end()

    assert (run.state, run.committed_steps, run.num_samples) == ("done", 300, 1200)
    assert (run.failovers, run.reconfigurations, run.restores, run.steps_rerun) == (0, 0, 0, 0)
    steps = reader.read_steps(cluster.path, run_id)
    assert [(step.step, round(1 / step.loss)) for step in steps] == [(step, step + 1) for step in range(300)]
    assert {step.generation for step in steps} == {1}
    assert [(node.node_id, node.instance_id) for node in cluster.status.nodes] == instances
    assert cluster.story.count("the coordinator begins") == 6
    for once in ("n1 joined", "n1/1 is ready", "n2/1 is ready", f"run {run_id} is done"):
        assert sum(once in line for line in cluster.story) == 1, once
    assert not any("lost" in line for line in cluster.story)


def test_a_coordinator_that_is_killed_while_it_rents_rents_nothing_twice(cluster: Cluster) -> None:
    for _ in range(3):
        cluster.start()
        cluster.kill()
    cluster.start()
    cluster.await_nodes()

    provider = provider_of_cloud("local")
    assert len(provider.instances(cluster.status.cluster_id)) == 2


def test_training_goes_on_while_the_coordinator_is_away(cluster: Cluster) -> None:
    cluster.start()
    cluster.await_nodes()
    run_id = cluster.train()
    wait_until(lambda: cluster.run.committed_steps > 2, "some steps")
    record = cluster.folder / "checkpoints" / run_id / "committed"

    cluster.kill()
    wait_until(lambda: len(record.read_text()) == 60, "the workers to finish alone")
    assert cluster.run.committed_steps < 60
    assert not cluster.status.coordinator.alive
    cluster.start()

    run = cluster.await_end()
    assert (run.state, run.committed_steps, run.steps_rerun) == ("done", 60, 0)
    assert len(reader.read_steps(cluster.path, run_id)) == 60


@pytest.mark.skipif(not hasattr(psutil.Process, "rlimit"), reason="a file size limit stands in for the full disk")
def test_a_full_disk_holds_the_coordinator_up_and_loses_nothing(cluster: Cluster) -> None:
    coordinator = psutil.Process(cluster.start())
    cluster.await_nodes()
    run_id = cluster.train(steps=400)
    wait_until(lambda: cluster.run.committed_steps > 5, "some steps")
    record = cluster.folder / "checkpoints" / run_id / "committed"

    coordinator.rlimit(psutil.RLIMIT_FSIZE, (0, -1))
    full_at = len(record.read_text())
    wait_until(lambda: len(record.read_text()) > full_at + 60, "training to go on")
    assert cluster.run.committed_steps < full_at + 60, "it was not full"
    coordinator.rlimit(psutil.RLIMIT_FSIZE, (-1, -1))
    run = cluster.await_end()

    assert (run.state, run.committed_steps, run.num_samples, run.steps_rerun) == ("done", 400, 1600, 0)
    assert len(reader.read_steps(cluster.path, run_id)) == 400
    assert any("the state file could not be written for" in line for line in cluster.story)
    assert not any("lost" in line for line in cluster.story)


def test_a_state_file_that_somebody_locks_for_longer_than_a_lease_costs_nobody_anything(cluster: Cluster) -> None:
    cluster.start()
    cluster.await_nodes()
    run_id = cluster.train(steps=400)
    wait_until(lambda: cluster.run.committed_steps > 5, "some steps")
    record = cluster.folder / "checkpoints" / run_id / "committed"

    with closing(sqlite3.connect(cluster.path, timeout=10.0, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        locked_at, committed = time.monotonic(), len(record.read_text())
        wait_until(lambda: time.monotonic() - locked_at > LEASE_S + 1.0, "more than a lease")
        assert len(record.read_text()) > committed
        other.execute("ROLLBACK")
    run = cluster.await_end()

    assert (run.state, run.committed_steps, run.steps_rerun, run.restores) == ("done", 400, 0, 0)
    assert any("the state file could not be written for" in line for line in cluster.story)
    assert not any("lost" in line for line in cluster.story)


def test_asked_to_end_it_ends_in_good_order_and_the_nodes_stay(cluster: Cluster) -> None:
    cluster.start()
    cluster.await_nodes()

    daemon.stop(cluster.folder)

    assert not cluster.status.coordinator.alive
    assert len(provider_of_cloud("local").instances(cluster.status.cluster_id)) == 2
    assert not (cluster.folder / "state.db-wal").exists(), "the file was not closed"
    assert "Traceback" not in (cluster.folder / daemon.LOG_FILE).read_text()
    daemon.stop(cluster.folder)  # none is there: nothing happens


def test_a_request_that_was_made_while_nobody_listened_is_answered_later(cluster: Cluster) -> None:
    request_id = store.make_request(cluster.path, RequestKind.PREEMPT, {"node_id": "n9", "notice_s": None})
    garbled = store.make_request(cluster.path, RequestKind.TRAIN, {"job": {"name": "Not A Name"}})
    newer = store.make_request(cluster.path, "dance", {})  # type: ignore[arg-type] # of a newer bamboo

    cluster.start()
    for asked in (request_id, garbled, newer):
        wait_until(
            lambda asked=asked: store.request_outcome(cluster.path, asked).state is RequestState.REFUSED,  # type: ignore[misc]
            "the refusal",
        )

    assert "n9 has no instance" in store.request_outcome(cluster.path, request_id).outcome
    assert "does not understand this train request" in store.request_outcome(cluster.path, garbled).outcome
    assert "does not understand this dance request" in store.request_outcome(cluster.path, newer).outcome


def test_a_second_coordinator_is_refused_with_the_first_ones_pid(cluster: Cluster) -> None:
    pid = cluster.start()

    with pytest.raises(StateError, match=f"another coordinator \\(process {pid}\\)"):
        cluster.start()
    second = subprocess.run(
        [sys.executable, "-m", "bamboo_cli.coordinator", str(cluster.folder)],
        capture_output=True,
        text=True,
        timeout=30,
    )

    assert second.returncode == 1
    assert f"process {pid}" in second.stderr and "Traceback" not in second.stderr
    assert lock.owner(cluster.folder) == pid


def test_a_taken_port_and_a_damaged_file_are_said_from_the_log(cluster: Cluster) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        engine = store.open_for_writing(cluster.path)
        with store.writing(engine) as connection:
            connection.execute(update(schema.cluster).values(port=taken.getsockname()[1]))
        engine.dispose()

        with pytest.raises(StateError, match="did not start") as caught:
            cluster.start()
    assert "cannot listen for agents" in caught.value.message

    cluster.path.write_bytes(b"rubbish" * 1000)
    with pytest.raises(StateError, match="damaged"):
        cluster.start()


def test_an_agent_without_the_secret_is_refused_and_in_the_story(cluster: Cluster) -> None:
    cluster.start()
    _, port = cluster.secret_and_port()

    async def knock() -> None:
        with pytest.raises(InvalidStatus):
            async with connect(f"ws://127.0.0.1:{port}/agent", additional_headers={"Authorization": "Bearer no"}):
                pass

    asyncio.run(knock())

    wait_until(lambda: any("without the cluster's secret" in line for line in cluster.story), "the story")


def test_what_an_agent_says_twice_because_the_coordinator_died_is_handled_once(cluster: Cluster) -> None:
    cluster.start()
    cluster.await_nodes()
    secret, port = cluster.secret_and_port()
    node = cluster.status.nodes[0]
    cluster.freeze(str(node.instance_id))  # or its own agent would want its link back
    join = Join(
        protocol_version=PROTOCOL_VERSION,
        node_id=NodeId(node.node_id),
        boot_id="another life",
        instance_id=str(node.instance_id),
        zone=node.zone,
        address=str(node.address),
        pid=1,
        workers=(),
    )

    async def talk(*sequences: int) -> int:
        """Join and say hints; returns what had been acknowledged before."""
        headers = {"Authorization": f"Bearer {secret}"}
        async with connect(f"ws://127.0.0.1:{port}/agent", additional_headers=headers) as link:
            await link.send(encode(join).decode())
            welcome = decode_to_agent(await link.recv())
            assert isinstance(welcome, Welcome)
            for sequence in sequences:
                message = Envelope(sequence=sequence, sent_at=0.0, message=Hint(detail=f"hint {sequence}"))
                await link.send(encode(message).decode())
                while decode_to_agent(await link.recv()) != Acknowledge(sequence=sequence):
                    pass
        return welcome.acknowledged

    assert asyncio.run(talk(1, 2)) == 0
    cluster.kill()
    cluster.start()

    assert asyncio.run(talk(1, 2, 3)) == 2
    hints = [line for line in cluster.story if "hint" in line]
    assert hints == [f"{node.node_id}: hint {number}" for number in (1, 2, 3)]


def test_a_frozen_coordinator_blames_nobody_when_it_wakes(cluster: Cluster) -> None:
    pid = cluster.start()
    cluster.await_nodes()
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: time.time() - cluster.heartbeat_at > cluster.job.lease_s + 1, "more than a lease of silence")
    os.kill(pid, signal.SIGCONT)
    cluster.train()

    run = cluster.await_end()

    assert (run.state, run.preemptions, run.failovers) == ("done", 0, 0)
    assert len(cluster.status.nodes) == 2
