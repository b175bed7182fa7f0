"""A keeper goes on, whatever it meets: without its thread nobody would link the node again."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import paramiko
import pytest

from bamboo_cli.providers.base import Instance, InstanceState, NodeConfig
from bamboo_cli.remote import keeper as module
from bamboo_cli.remote.bastion import Bastions
from bamboo_cli.remote.connection import Connection
from bamboo_cli.remote.keeper import Common, Keeper
from bamboo_cli.remote.settings import RemoteConfig
from bamboo_cli.remote.steps import File, Luggage
from tests.remote.machine import Machine

NODE = Instance(
    instance_id="i-1",
    token="t",
    node_id="n1",
    cluster_id="c",
    instance_type="t",
    zone="a",
    state=InstanceState.RUNNING,
    address="127.0.0.2",
    launched_at=0.0,
)


@dataclass
class Scene:
    """One keeper; its machine is a node as soon as it is connected and linked."""

    keeper: Keeper = field(init=False)
    failed: list[str] = field(default_factory=list)
    linked: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))


def luggage() -> Luggage:
    return Luggage(wheel=File(name="w", content=b"", fingerprint=""), pip=None, wheelhouse=())


@pytest.fixture
def packed() -> list[Callable[[], Luggage]]:
    """How it is packed, time after time; then as ever."""
    return []


@pytest.fixture
def scene(
    vm: Machine, bastions: Bastions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: list[Any]
) -> Iterator[Scene]:
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.01)
    made = Scene()
    monkeypatch.setattr(module, "prepare", lambda *_, **__: made.linked.release())
    common = Common(
        node_config=lambda node_id, port: NodeConfig(
            cluster_id="c", node_id=node_id, coordinator_address="127.0.0.1", coordinator_port=port, secret="s"
        ),
        target=("127.0.0.1", 9),
        private_key=vm.known.private,
        config=RemoteConfig(),
        luggage=lambda: packed.pop(0)() if packed else luggage(),
        bastions=bastions,
        room=threading.Semaphore(1),
        logs=tmp_path / "nodes",
        cluster_id="c",
        doing=lambda instance, doing: None,
        failed=lambda instance, step, detail: made.failed.append(f"{step}: {detail}"),
        lost=lambda: None,
    )
    made.keeper = Keeper(NODE, vm.reach, common)
    yield made
    made.keeper.stop()
    made.keeper.join(20)


def test_what_nobody_thought_of_is_told_and_tried_again(scene: Scene, packed: list[Callable[[], Luggage]]) -> None:
    """Such as that this very program was taken away meanwhile, to be replaced by a newer one."""

    def gone() -> Luggage:
        raise PackageNotFoundError("bamboo-train")

    packed.append(gone)
    scene.keeper.start()
    assert scene.linked.acquire(timeout=20)
    (failed,) = scene.failed
    assert "bamboo-train" in failed and "coordinator.log" in failed


def test_a_connection_that_ends_in_the_middle_of_a_request_is_one_that_broke(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward, ends = paramiko.Transport.request_port_forward, [EOFError(), OSError("Broken pipe")]

    def request(*arguments: Any) -> int:
        if ends:
            raise ends.pop()
        return forward(*arguments)

    monkeypatch.setattr(paramiko.Transport, "request_port_forward", request)
    scene.keeper.start()
    assert scene.linked.acquire(timeout=20)
    assert scene.failed == []


def test_a_connection_whose_thread_ended_in_its_own_way_is_made_anew(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """paramiko raises in whoever asks next whatever ended its thread."""
    asked = [AttributeError("a bug there")]

    def is_well(connection: Connection) -> bool:
        if asked:
            raise asked.pop()
        return True

    monkeypatch.setattr(module, "PROBE_S", 0.01)
    monkeypatch.setattr(Connection, "is_well", is_well)
    scene.keeper.start()
    assert scene.linked.acquire(timeout=20) and scene.linked.acquire(timeout=20)
