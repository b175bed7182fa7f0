"""Machines that a cloud gives without an agent are made nodes over SSH, side by side, and kept linked. docs/remote.md.

Decides nothing: what comes of it is given to ``hear`` as events. Without such machines nothing here does anything, and
no SSH library is loaded.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from bamboo_trainer.plan import NodeId

from bamboo_cli import keys, paths
from bamboo_cli.coordinator.events import (
    CreateSucceeded,
    Event,
    InstanceEnded,
    InstanceSeen,
    PreparationFailed,
    StepBegun,
    WayFound,
    WayLost,
)
from bamboo_cli.providers.base import Instance, InstanceState, NodeConfig
from bamboo_cli.remote.settings import RemoteConfig

if TYPE_CHECKING:
    from bamboo_cli.remote.keeper import Common, Keeper

SIDE_BY_SIDE = 64
END_S = 2.0
"""How long the end of the coordinator waits for its threads; they end with it anyway."""
UP = (InstanceState.RUNNING, InstanceState.ENDING)


class Preparing:
    """Make it inside a running event loop; ``note`` and ``forget`` are called there, and so is ``hear``."""

    def __init__(
        self,
        *,
        cluster_dir: Path,
        config: RemoteConfig,
        node_config: Callable[[NodeId], NodeConfig],
        hear: Callable[[Event], None],
        lost: Callable[[], None],
    ) -> None:
        """``node_config``: as for an agent that reaches the coordinator directly. ``lost``: a connection broke, perhaps
        since its machine is gone.
        """
        self._cluster_dir = cluster_dir
        self._config = config
        self._node_config = node_config
        self._hear = hear
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._keepers: dict[str, Keeper] = {}
        """By node."""
        self._unwanted: set[str] = set()
        self._common: Common | None = None

    def note(self, event: Event) -> None:
        """Before the instructions are carried out that the event has led to."""
        match event:
            case CreateSucceeded(instance=instance) | InstanceSeen(instance=instance):
                self._keep(instance)
            case InstanceEnded(node_id=node_id):
                self.forget(node_id)

    def forget(self, node_id: NodeId) -> None:
        """The machine is given back, or gone. It never comes again under this name."""
        self._unwanted.add(node_id)
        keeper = self._keepers.pop(node_id, None)
        if keeper is not None:
            _in_thread(keeper.stop)

    async def end(self) -> None:
        """Connections end, agents and what is being installed go on."""
        keepers, self._keepers = tuple(self._keepers.values()), {}
        for keeper in keepers:
            _in_thread(keeper.stop)
        deadline = self._loop.time() + END_S
        for keeper in keepers:
            await asyncio.to_thread(keeper.join, max(0.0, deadline - self._loop.time()))
        if self._common is not None:
            _in_thread(self._common.bastions.close)

    def _keep(self, instance: Instance) -> None:
        """Its address may change, by a restart of the machine say."""
        node_id, reach = instance.node_id, instance.reach
        if reach is None or instance.state not in UP or node_id in self._unwanted:
            return
        known = self._keepers.get(node_id)
        if known is not None and (known.instance.instance_id, known.reach) == (instance.instance_id, reach):
            return
        from bamboo_cli.remote.keeper import Keeper

        if known is not None:
            _in_thread(known.stop)
        self._common = self._common or self._make_common()
        keeper = self._keepers[node_id] = Keeper(instance, reach, self._common)
        keeper.start()

    def _make_common(self) -> "Common":
        from bamboo_cli.remote.bastion import Bastions
        from bamboo_cli.remote.keeper import Common
        from bamboo_cli.remote.prepare import pack_luggage
        from bamboo_cli.remote.steps import Luggage

        here = self._node_config(NodeId(""))
        lock, packed = threading.Lock(), cache(partial(pack_luggage, self._config))

        def luggage() -> Luggage:
            with lock:
                return packed()

        return Common(
            node_config=self._seen_from_the_machine,
            target=(here.coordinator_address, here.coordinator_port),
            private_key=keys.client_key(self._cluster_dir).private,
            config=self._config,
            luggage=luggage,
            bastions=Bastions(
                lost=lambda bastion, detail: self._say(WayLost(bastion=bastion, detail=detail)),
                found=lambda bastion: self._say(WayFound(bastion=bastion)),
            ),
            room=threading.Semaphore(SIDE_BY_SIDE),
            logs=self._cluster_dir / paths.NODES,
            cluster_id=here.cluster_id,
            doing=self._doing,
            failed=self._failed,
            lost=partial(self._in_loop, self._lost),
        )

    # --- in the keepers' threads --------------------------------------------------------------------------------

    def _seen_from_the_machine(self, node_id: str, port: int) -> NodeConfig:
        return replace(self._node_config(NodeId(node_id)), coordinator_address="127.0.0.1", coordinator_port=port)

    def _doing(self, instance: Instance, doing: str) -> None:
        node_id = NodeId(instance.node_id)
        self._say(StepBegun(node_id=node_id, instance_id=instance.instance_id, doing=doing))

    def _failed(self, instance: Instance, step: str, detail: str) -> None:
        node_id = NodeId(instance.node_id)
        self._say(PreparationFailed(node_id=node_id, instance_id=instance.instance_id, step=step, detail=detail))

    def _say(self, event: Event) -> None:
        self._in_loop(partial(self._hear, event))

    def _in_loop(self, deed: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the coordinator has ended
            self._loop.call_soon_threadsafe(deed)


def _in_thread(work: Callable[[], None]) -> None:
    """To close a connection may take seconds."""
    threading.Thread(target=work, daemon=True).start()
