"""The coordinator dies before or after any write, and before any deed. Whoever comes after it carries on.

A whole life of a cluster (rent two nodes, train, close) is gone through with one death at each place; what came of it
must be what comes of it without.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection

from bamboo_cli import jobs
from bamboo_cli.config import JobConfig
from bamboo_cli.coordinator import inbox, reader, service, store
from bamboo_cli.coordinator.events import Instruction
from bamboo_cli.coordinator.server import Link
from bamboo_cli.coordinator.service import Service
from bamboo_cli.coordinator.store import RequestKind, RequestState
from tests.coordinator.agent_double import AgentDouble, Training
from tests.coordinator.memory_cloud import MemoryCloud, offer
from tests.waiting import until

NUM_STEPS = 5
ZONES = ("local-a", "local-b", "local-c")
JOB = JobConfig(name="demo", recipe="mlp", steps=NUM_STEPS, global_batch_size=4, microbatch_size=1, stages=2, lease_s=5)


class Killed(Exception):
    """At this instant the process is gone."""


class Mortal(Service):
    """Dies at one place of its life; places are counted over all that it does."""

    def __init__(self, *arguments: Any, dies_at: int | None, **named: Any) -> None:
        self.dies_at = dies_at
        self.place = 0
        super().__init__(*arguments, **named)

    def _pass(self) -> None:
        self.place += 1
        if self.place - 1 == self.dies_at:
            raise Killed

    async def _write(self, change: Callable[[Connection], None]) -> None:
        self._pass()
        await super()._write(change)
        self._pass()

    def _perform(self, instruction: Instruction, link: Link | None) -> None:
        self._pass()
        super()._perform(instruction, link)


class Life:
    """A cluster, its cloud, its agents and its user; the coordinator comes and goes."""

    def __init__(self, cluster_dir: Path, dies_at: int | None) -> None:
        self.cluster_dir = cluster_dir
        self.path = store.state_path(cluster_dir)
        self.dies_at = dies_at
        self.deaths = 0
        self.places = 0
        self.provider = MemoryCloud(market=tuple(offer(zone) for zone in ZONES))
        self.training = Training()
        self.agents: dict[str, AgentDouble] = {}
        self.tasks: list[asyncio.Task[None]] = []

    async def live(self) -> None:
        self.tasks = [asyncio.create_task(self._boot_agents()), asyncio.create_task(self._use())]
        while True:
            mortal = Mortal(
                self.cluster_dir,
                dies_at=self.dies_at if self.deaths == 0 else None,
                config=jobs.cluster_config(JOB, "demo-1"),
                provider=self.provider,
                notice_s=10.0,
                clock=time.time,
            )
            running = asyncio.create_task(mortal.run())
            await asyncio.wait({running, self.tasks[1]}, return_when=asyncio.FIRST_COMPLETED)
            if self.tasks[1].done():
                self.tasks[1].result()
            try:
                await running
                break
            except Killed:
                self.deaths += 1
        self.places = mortal.place
        await self.tasks[1]
        for task in self.tasks:
            task.cancel()
        await asyncio.wait(self.tasks)
        await until(lambda: asyncio.all_tasks() == {asyncio.current_task()}, "both ends of every link to be closed")

    async def _boot_agents(self) -> None:
        """The cloud runs an agent on every instance, and ends it with it."""
        changed, loop = asyncio.Event(), asyncio.get_running_loop()
        self.provider.on_change = lambda: loop.call_soon_threadsafe(changed.set)
        while True:
            changed.clear()
            for instance in self.provider.alive():
                if instance.instance_id not in self.agents:
                    config = self.provider.configs[instance.instance_id]
                    agent = AgentDouble(instance=instance, config=config, training=self.training)
                    self.agents[instance.instance_id] = agent
                    self.tasks.append(asyncio.create_task(agent.live()))
            alive = {instance.instance_id for instance in self.provider.alive()}
            for instance_id, agent in self.agents.items():
                agent.over = agent.over or instance_id not in alive
            await changed.wait()

    async def _use(self) -> None:
        await self._ask(RequestKind.TRAIN, {"job_text": "", "job": JOB.model_dump(mode="json")})
        await until(lambda: reader.read_runs(self.path)[-1].ended_at is not None, "the end of the run")
        await self._ask(RequestKind.DOWN, {})

    async def _ask(self, kind: RequestKind, payload: dict[str, Any]) -> None:
        asked = store.make_request(self.path, kind, payload)
        await until(lambda: store.request_outcome(self.path, asked).state is RequestState.DONE, f"an answer to {kind}")


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "TICK_S", 0.02)
    monkeypatch.setattr(service, "REQUESTS_S", 0.01)
    monkeypatch.setattr(MemoryCloud, "poll_s", 0.01)


def live(folder: Path, dies_at: int | None) -> Life:
    cluster_dir = folder / f"dies-at-{dies_at}"
    store.create_cluster(
        cluster_dir, name="demo", cloud="local", job_text="", job=JOB.model_dump(mode="json"), wanted_nodes=2
    )
    life = Life(cluster_dir, dies_at)
    asyncio.run(life.live())
    return life


def check(life: Life) -> None:
    status = reader.read_status(life.path, now=time.time())
    (run,) = reader.read_runs(life.path)
    steps = reader.read_steps(life.path, run.run_id)
    started = [worker_id for agent in life.agents.values() for worker_id in agent.started]

    assert (run.state, run.committed_steps, run.num_samples) == ("done", NUM_STEPS, 4 * NUM_STEPS)
    assert [(step.step, step.loss) for step in steps] == [(step, 1.0 / (1 + step)) for step in range(NUM_STEPS)]
    assert (run.steps_rerun, run.failovers, run.restores, run.preemptions) == (0, 0, 0, 0)
    assert sorted(started) == ["n1/1", "n2/1"], "a worker was started twice, or for nothing"
    assert len(life.provider.made) == 2, "an instance was rented twice"
    assert life.provider.alive() == [] and status.state == "closed"
    charges = reader.read_charges(life.path, now=time.time() + 3600)
    paid = {charge.instance_id: charge.to_at for charge in charges}
    assert paid == {instance.instance_id: instance.ended_at for instance in life.provider.made.values()}


def test_a_life_without_a_death(tmp_path: Path) -> None:
    life = live(tmp_path, None)

    check(life)
    assert life.deaths == 0


def test_one_death_at_every_so_many_places(tmp_path: Path) -> None:
    places = live(tmp_path, None).places

    # and at each of the last few: between the last write and the end there is nobody left to wake it up
    for dies_at in sorted({*range(1, places, max(1, places // 12)), *range(places - 5, places)}):
        check(live(tmp_path, dies_at))


@pytest.mark.soak
@pytest.mark.timeout(1200)
# a death between accepting a connection and serving it leaves the socket to this process, which lives on
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_one_death_at_every_place(tmp_path: Path) -> None:
    for dies_at in range(live(tmp_path, None).places):
        check(live(tmp_path, dies_at))
