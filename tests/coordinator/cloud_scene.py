"""A coordinator at the cloud, for tests of what it does and notices there."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from bamboo_trainer.plan import NodeId
from sqlalchemy import Engine, Row, select

from bamboo_cli.coordinator import cloud as cloud_module
from bamboo_cli.coordinator import journal, schema, store
from bamboo_cli.coordinator.cloud import Cloud
from bamboo_cli.coordinator.events import (
    CreateInstance,
    Event,
    Tell,
)
from bamboo_cli.providers.base import NodeConfig
from tests.coordinator.memory_cloud import MemoryCloud
from tests.waiting import until

START = 1_790_000_000.0
CLUSTER = "demo-1"
SELDOM_S = 1000.0


@pytest.fixture(autouse=True)
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryCloud, "poll_s", 0.005)
    monkeypatch.setattr(cloud_module, "MAX_POLL_S", 0.02)


@dataclass
class Scene:
    """One coordinator at the cloud, its clock in our hand. What it hears is written down as the service would."""

    provider: MemoryCloud
    engine: Engine
    now: float = START
    heard: list[Event] = field(default_factory=list)
    told: list[Tell] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.provider.clock = lambda: self.now
        self.cloud = Cloud(
            provider=self.provider,
            engine=self.engine,
            cluster_id=CLUSTER,
            node_config=self._node_config,
            notice_s=30.0,
            clock=lambda: self.now,
            hear=self._hear,
            tell=self.told.append,
        )

    async def create(self, number: int = 1, zone: str = "a") -> None:
        await self.cloud.create(CreateInstance(node_id=NodeId(f"n{number}"), zone=zone, token=f"token-{number}"))

    def events(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.heard if isinstance(event, kind)]

    def instances(self) -> list[Row[Any]]:
        with store.writing(self.engine) as connection:
            return list(connection.execute(select(schema.instances)))

    def _hear(self, event: Event) -> None:
        self.heard.append(event)
        with store.writing(self.engine) as connection:
            journal.record(connection, event, {}, (), self.now)

    def _node_config(self, node_id: NodeId) -> NodeConfig:
        return NodeConfig(
            cluster_id=CLUSTER, node_id=node_id, coordinator_address="127.0.0.1", coordinator_port=1, secret="s"
        )


@pytest.fixture
def scene(cluster_dir: Path) -> Scene:
    """Its event loop comes with ``play``."""
    return Scene(provider=MemoryCloud(), engine=store.open_for_writing(store.state_path(cluster_dir)))


def again(scene: Scene) -> Scene:
    """The coordinator was killed and started anew; what it had heard and not written down is gone."""
    return Scene(provider=scene.provider, engine=scene.engine, now=scene.now)


def play(scenario: Callable[[], Awaitable[None]]) -> None:
    async def in_time() -> None:
        async with asyncio.timeout(20):
            await scenario()

    asyncio.run(in_time())


async def watching(scene: Scene, until_then: Callable[[], bool], what: str) -> None:
    task = asyncio.create_task(scene.cloud.watch())
    await until(lambda: until_then() or task.done(), what)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def look_twice(scene: Scene) -> None:
    """What the first of them saw has been handled when the second begins."""
    enough = scene.provider.num_looks + 2
    await watching(scene, lambda: scene.provider.num_looks >= enough, "two looks")
