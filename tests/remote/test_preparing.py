"""A coordinator and machines that come without an agent: from renting to a node that trains, and what goes wrong."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bamboo_cli import jobs, keys
from bamboo_cli.config import JobConfig
from bamboo_cli.coordinator import inbox, reader, store
from bamboo_cli.coordinator.inbox import steady_clock
from bamboo_cli.coordinator.service import Service
from bamboo_cli.coordinator.status import NodeStatus
from bamboo_cli.coordinator.store import RequestKind, RequestState
from bamboo_cli.remote import keeper
from bamboo_cli.remote.settings import RemoteConfig
from tests.coordinator.memory_cloud import MemoryCloud, offer
from tests.remote.machine import MISSING, SSHD, Machine, machine
from tests.remote.remote_cloud import RemoteCloud, end_instances, write_process_config
from tests.waiting import until, wait_until

INSTALL_S = 150.0
"""It takes 10 s of computing, on machines that have more to do."""
pytestmark = pytest.mark.timeout(400)
WISHES: dict[str, Any] = {
    "pythons": (sys.executable,),
    "metadata_endpoint": "http://127.0.0.1:9",
    "notice_poll_s": 60.0,
}


def job_of(folder: Path, **changes: Any) -> JobConfig:
    facts: dict[str, Any] = {
        "name": "demo",
        "recipe": "mlp",
        "steps": 30,
        "global_batch_size": 4,
        "microbatch_size": 1,
        "stages": 1,
        "redundancy": "off",
        "checkpoint": {"url": str(folder / "checkpoints")},
    }
    return JobConfig.model_validate(facts | changes)


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "TICK_S", 0.02)
    monkeypatch.setattr(MemoryCloud, "poll_s", 0.02)


@pytest.fixture
def cluster_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "cluster"
    job = job_of(tmp_path)
    store.create_cluster(
        folder, name="demo", cloud="local", job_text="", job=job.model_dump(mode="json"), wanted_nodes=1
    )
    return folder


@pytest.fixture
def vm(tmp_path: Path, cluster_dir: Path) -> Iterator[Machine]:
    """Open to the cluster's own key."""
    if SSHD is None:
        pytest.skip(MISSING)
    with machine(tmp_path / "vm", booted=False) as made:
        made.known = keys.client_key(cluster_dir)
        made.authorise()
        made.boot()
        yield made


def coordinate(
    cluster_dir: Path,
    cloud: RemoteCloud,
    story: Callable[[], Coroutine[Any, Any, None]],
    wishes: RemoteConfig = RemoteConfig(**WISHES),
    **changes: Any,
) -> None:
    """A coordinator in this process, while ``story`` goes on; then it is stopped."""

    async def play() -> None:
        made = Service(
            cluster_dir,
            config=replace(jobs.cluster_config(job_of(cluster_dir), "demo-1"), **changes),
            provider=cloud,
            notice_s=10.0,
            clock=steady_clock(),
            remote=wishes,
        )
        running = asyncio.create_task(made.run())
        telling = asyncio.create_task(story())
        try:
            await asyncio.wait({running, telling}, return_when=asyncio.FIRST_COMPLETED)
            if not telling.done():
                await running
            await telling
        finally:
            telling.cancel()
            made.stop()
            await running

    asyncio.run(play())


def remote_cloud(vm: Machine) -> RemoteCloud:
    zones = job_of(Path()).local.zones
    return RemoteCloud(market=tuple(offer(zone.name) for zone in zones), reach=vm.reach)


def node(cluster_dir: Path, node_id: str = "n1") -> NodeStatus | None:
    status = reader.read_status(store.state_path(cluster_dir), now=time.time())
    return next((node for node in status.nodes if node.node_id == node_id), None)


def state(cluster_dir: Path, node_id: str = "n1") -> str:
    found = node(cluster_dir, node_id)
    return found.state if found else ""


def told(cluster_dir: Path) -> list[str]:
    return [event.text for event in reader.read_events(store.state_path(cluster_dir))]


def test_a_machine_becomes_a_node_and_stays_one_when_its_connection_breaks(vm: Machine, cluster_dir: Path) -> None:
    async def story() -> None:
        seen: set[str] = set()

        def joined() -> bool:
            found = node(cluster_dir)
            seen.add(found.reason if found else "")
            return found is not None and found.state in ("joined", "standby")

        await until(joined, "the node", deadline_s=INSTALL_S)
        assert "installing bamboo" in seen, "`bamboo status` shows what is being done"
        for session in vm.sessions():
            session.kill()
        await until(lambda: any("the link to the agent of n1 ended" in t for t in told(cluster_dir)), "the end")
        await until(lambda: len(vm.sessions()) > 0, "a new connection")
        await until(lambda: _is_fresh(cluster_dir), "its beat")
        assert state(cluster_dir) in ("joined", "standby")

    coordinate(cluster_dir, remote_cloud(vm), story)

    assert not any("lost" in text for text in told(cluster_dir))
    assert len(vm.agents()) == 1, "it goes on without a coordinator"
    begun = [text for text in told(cluster_dir) if text.startswith("n1: ")]
    assert begun[:3] == ["n1: connecting", "n1: waiting for its image to finish booting", "n1: copying files"]
    assert "torch" in (cluster_dir / "nodes" / "n1.log").read_text()


def _is_fresh(cluster_dir: Path) -> bool:
    found = node(cluster_dir)
    return found is not None and found.last_beat_at is not None and time.time() - found.last_beat_at < 1.0


def test_machines_that_all_fail_in_the_same_step_are_given_back_and_no_more_are_rented(
    vm: Machine, cluster_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bamboo_cli.coordinator import preparation

    monkeypatch.setattr(preparation, "FIRST_PAUSE_S", 0.1)
    cloud = remote_cloud(vm)

    def gave_up() -> str:
        return reader.read_status(store.state_path(cluster_dir), now=time.time()).gave_up

    async def story() -> None:
        await until(lambda: bool(gave_up()) and not cloud.alive(), "the end of all tries")

    coordinate(cluster_dir, cloud, story, RemoteConfig(pythons=("no-such-python",)))

    assert len(cloud.made) == 3
    assert "all in the step `look`: the image has no Python 3.11 or newer (found: none)" in gave_up()
    found = node(cluster_dir)
    assert found is not None
    assert found.reason.startswith("it could not be made a node: the image has no Python")


def test_a_machine_that_shows_another_host_key_is_given_back_and_the_next_one_is_taken(
    vm: Machine, cluster_dir: Path
) -> None:
    cloud = remote_cloud(vm)
    cloud.reach = replace(vm.reach, host_key=keys.host_key(vm.folder, "another").public)

    async def story() -> None:
        await until(lambda: state(cluster_dir) == "ended", "the end of the machine")

    coordinate(cluster_dir, cloud, story)

    found = node(cluster_dir)
    assert found is not None and "not the one that it was given" in found.reason
    assert not (vm.home / ".bamboo").exists(), "nothing was sent to it"


def test_a_machine_that_is_given_back_while_it_is_prepared_is_let_go_at_once(vm: Machine, cluster_dir: Path) -> None:
    vm.program("cloud-init", "sleep 1000")
    cloud = remote_cloud(vm)

    async def story() -> None:
        await until(lambda: bool(vm.marked("cloud-init")), "its boot")
        asked = store.make_request(store.state_path(cluster_dir), RequestKind.DOWN, {})
        outcome = store.request_outcome
        await until(lambda: outcome(store.state_path(cluster_dir), asked).state is RequestState.DONE, "down")
        await until(lambda: not vm.sessions(), "the end of the connection")

    coordinate(cluster_dir, cloud, story)
    assert cloud.alive() == []


KILLS_ITS_SESSION = """
pid=$$
while [ "$(cat /proc/$pid/comm)" != sshd ]; do pid=$(awk '/^PPid:/ {print $2}' /proc/$pid/status); done
kill -9 $pid
"""


def test_a_connection_that_keeps_breaking_is_given_up(
    vm: Machine, cluster_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "LAST_PAUSE_S", 0.2)
    vm.program("cloud-init", KILLS_ITS_SESSION)

    async def story() -> None:
        await until(lambda: state(cluster_dir) == "ended", "the end of the machine")

    coordinate(cluster_dir, remote_cloud(vm), story)
    found = node(cluster_dir)
    assert found is not None and "the SSH connection broke" in found.reason


# --- a coordinator that is killed -------------------------------------------------------------------------------


@contextmanager
def coordinator_process(cluster_dir: Path) -> Iterator["subprocess.Popen[bytes]"]:
    with (cluster_dir / "coordinator.log").open("ab") as log:
        process = subprocess.Popen([sys.executable, "-m", "tests.remote.remote_cloud", cluster_dir], stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_a_run_goes_on_through_a_kill_of_its_coordinator_and_the_next_one_finds_it(
    vm: Machine, cluster_dir: Path, tmp_path: Path
) -> None:
    job = job_of(tmp_path, steps=400)
    write_process_config(cluster_dir, reach=vm.reach, job=job, remote=WISHES)
    path = store.state_path(cluster_dir)

    def committed() -> int:
        runs = reader.read_runs(path)
        return runs[-1].committed_steps if runs else 0

    with coordinator_process(cluster_dir):
        wait_until(lambda: state(cluster_dir) in ("joined", "standby"), "the node", deadline_s=INSTALL_S)
        store.make_request(path, RequestKind.TRAIN, {"job_text": "", "job": job.model_dump(mode="json")})
        wait_until(lambda: committed() > 3, "the first steps")
    before, (agent,) = committed(), vm.agents()
    workers = {child.pid for child in agent.children(recursive=True)}

    with coordinator_process(cluster_dir):
        wait_until(lambda: reader.read_runs(path)[-1].ended_at is not None, "the end of the run")
        copied = cluster_dir / "nodes" / "n1" / "agent.log"
        wait_until(lambda: "linked again" in copied.read_text(), "what the agent says since the kill")

    (run,) = reader.read_runs(path)
    assert (run.state, run.committed_steps, run.steps_rerun, run.restores) == ("done", 400, 0, 0)
    assert before < 400 and vm.agents() == [agent]
    assert {child.pid for child in agent.children(recursive=True)} & workers
    assert told(cluster_dir).count("n1: installing bamboo") == 1
    for name in ("agent.log", "worker.log"):
        there = (vm.home / f".bamboo/demo-1/n1/{name}").read_bytes()
        here = (cluster_dir / "nodes" / "n1" / name).read_bytes()
        assert here and there.startswith(here), f"{name}: no hole, nothing twice, through the kill"
    logs = b"".join(path.read_bytes() for path in (cluster_dir / "nodes").rglob("*.log"))
    secret = json.loads((vm.home / ".bamboo/demo-1/n1/config.json").read_text())["secret"]
    assert secret.encode() not in logs


def test_work_that_was_done_while_no_coordinator_came_back_is_not_lost_with_the_machines(
    vm: Machine, cluster_dir: Path, tmp_path: Path
) -> None:
    """The dead-man's switch saves at a boundary; the next coordinator finds the checkpoint and what it was not told."""
    job, ended = (
        job_of(tmp_path, steps=4000, checkpoint={"url": str(tmp_path / "c"), "every": 3999}),
        tmp_path / "ended",
    )
    wishes = WISHES | {"orphan_after_s": 3.0, "shutdown_command": ("touch", str(ended))}
    write_process_config(cluster_dir, reach=vm.reach, job=job, remote=wishes)
    path = store.state_path(cluster_dir)
    with coordinator_process(cluster_dir):
        wait_until(lambda: state(cluster_dir) in ("joined", "standby"), "the node", deadline_s=INSTALL_S)
        store.make_request(path, RequestKind.TRAIN, {"job_text": "", "job": job.model_dump(mode="json")})
        wait_until(lambda: any(run.committed_steps > 3 for run in reader.read_runs(path)), "the first steps")
    wait_until(ended.exists, "the end of the machine")
    for process in vm.marked():
        if process.pid not in {p.pid for p in vm.processes()}:
            process.kill()
    end_instances(cluster_dir)
    before = reader.read_runs(path)[-1].committed_steps

    with coordinator_process(cluster_dir):
        wait_until(
            lambda: any("came back" in text or "n2 joined" in text for text in told(cluster_dir)), "another node"
        )
        wait_until(lambda: reader.read_runs(path)[-1].restores == 1, "the run to go on", deadline_s=INSTALL_S)

    (run,) = reader.read_runs(path)
    assert run.checkpoint_step is not None and run.checkpoint_step > before, "of work of which nobody was told"
    assert run.steps_rerun == 0 and run.committed_steps > run.checkpoint_step
    steps = [row.step for row in reader.read_steps(path, run.run_id)]
    assert steps == list(range(len(steps))), "every step is on record"
