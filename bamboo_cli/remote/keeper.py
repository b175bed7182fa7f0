"""One machine's thread: makes it a node, then keeps the connection that its agent's link runs in, as long as wanted."""

import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bamboo_cli.errors import BastionError, ConnectionLostError, HostKeyError, RemoteError, StepError
from bamboo_cli.providers.base import Instance, NodeConfig, Reach
from bamboo_cli.remote.bastion import Bastions
from bamboo_cli.remote.connection import Connection, connect_patiently
from bamboo_cli.remote.forward import Forward
from bamboo_cli.remote.log_copy import LogCopy
from bamboo_cli.remote.prepare import StepLog, prepare
from bamboo_cli.remote.settings import BASTION_STEP, RemoteConfig
from bamboo_cli.remote.steps import Luggage, Place

LOSSES_BORNE = 5
"""Connections that broke while one machine was prepared."""
PROBE_S = 10.0
BASTION_LOOK_S = 0.5
FIRST_PAUSE_S, LAST_PAUSE_S = 0.2, 15.0
CONNECT = "connect"
LAST_LOGS_S = 1.0
"""How long the end of a connection waits for the last lines of the node's logs."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """What the keepers of one cluster share. The callables may block, and may be called by any thread."""

    node_config: Callable[[str, int], NodeConfig]
    """Of a node whose agent finds the coordinator at a port of its own loopback."""
    target: tuple[str, int]
    """Where the coordinator listens for agents."""
    private_key: str
    config: RemoteConfig
    luggage: Callable[[], Luggage]
    bastions: Bastions
    room: threading.Semaphore
    """For so many at a time that are prepared."""
    logs: Path
    """Of what the steps write, ``n3.log``, and of what each node's own logs are copied to, ``n3/``."""
    cluster_id: str
    doing: Callable[[Instance, str], None]
    failed: Callable[[Instance, str, str], None]
    """The step, and what happened. It goes on trying until it is stopped."""
    lost: Callable[[], None]
    """A connection broke, perhaps since its machine is gone."""


class Keeper:
    def __init__(self, instance: Instance, reach: Reach, common: Common) -> None:
        self.instance = instance
        self.reach = reach
        self._common = common
        self._stop = threading.Event()
        self._connection: Connection | None = None
        self._losses, self._pause_s = 0, FIRST_PAUSE_S
        place = Place(cluster_id=common.cluster_id, node_id=instance.node_id)
        self._log_copy = LogCopy(place, common.logs / instance.node_id)
        self._thread = threading.Thread(target=self._run, name=f"keeper of {instance.node_id}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """At once, but for the last lines of its logs; what runs on the machine goes on there."""
        self._stop.set()
        self._log_copy.finish(LAST_LOGS_S)
        if self._connection is not None:
            self._connection.close()

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def _run(self) -> None:
        """Whatever a try meets, another follows: without this thread nobody would link the node again."""
        while not self._stop.wait(self._pause_s if self._losses else 0.0):
            try:
                self._link()
            except BastionError as error:
                self._await_bastion(error)
            except HostKeyError as error:
                self._lost(error)
                return
            except RemoteError as error:
                self._lost(error)
            except Exception as error:
                log.exception("a bug, here or in paramiko; %s is tried again", self.instance.node_id)
                words = f"{type(error).__name__}: {error}"
                self._lost(StepError(words, step=CONNECT, next_step="coordinator.log says where it happened"))

    def _link(self) -> None:
        """Until the link breaks. Raises RemoteError where none comes about."""
        connection = self._linked()
        self._losses, self._pause_s = 0, FIRST_PAUSE_S
        self._log_copy.use(connection)
        try:
            self._watch(connection)
        finally:
            connection.close()
            self._losses = 1
        log.info("the SSH connection to %s ended", self.instance.node_id)
        self._common.lost()

    def _linked(self) -> Connection:
        """A connection, the agent on its way through it. Raises RemoteError."""
        with self._common.room:
            if self._stop.is_set():
                raise ConnectionLostError("it is not wanted any more")
            self._common.doing(self.instance, "connecting")
            connection = self._connection = connect_patiently(
                self.reach,
                self._common.private_key,
                bastions=self._common.bastions,
                patience_s=self._common.config.connect_within_s,
                stop=self._stop,
            )
            try:
                self._prepare(connection)
            except BaseException:
                connection.close()
                raise
        return connection

    def _prepare(self, connection: Connection) -> None:
        node_id, common = self.instance.node_id, self._common
        forward = Forward(connection, common.target)
        prepare(
            connection,
            instance=self.instance,
            node=common.node_config(node_id, forward.port),
            luggage=common.luggage(),
            config=common.config,
            say=lambda step: common.doing(self.instance, step.doing),
            log=StepLog(common.logs / f"{node_id}.log"),
        )

    def _watch(self, connection: Connection) -> None:
        """Until it ends. A machine that hangs, or a cable that is cut, says nothing: so it is asked now and then."""
        while connection.is_open and not self._stop.is_set():
            connection.wait_for_its_end(PROBE_S)
            if connection.is_open and not connection.is_well():
                break

    def _await_bastion(self, error: BastionError) -> None:
        """That the way is down says nothing of the machine, and its time to answer begins when there is one again."""
        bastion, common = self.reach.bastion or "", self._common
        common.doing(self.instance, f"waiting for the bastion {bastion}")
        given_up_at = time.monotonic() + common.config.connect_within_s
        while not self._stop.wait(BASTION_LOOK_S) and common.bastions.is_down(bastion):
            if time.monotonic() > given_up_at:
                given_up_at = math.inf
                within = f" for {common.config.connect_within_s:.0f} s"
                common.failed(self.instance, BASTION_STEP, f"{error.message}{within} ({error.next_step.rstrip('.')})")

    def _lost(self, error: RemoteError) -> None:
        """A connection that breaks is nothing, unless it goes on so, and is not the bastion's."""
        self._pause_s = min(LAST_PAUSE_S, self._pause_s * 2)
        if isinstance(error, ConnectionLostError):
            self._common.lost()
            if self.reach.bastion is not None and not self._common.bastions.is_well(self.reach.bastion):
                self._losses = max(1, self._losses)
                return
        self._losses += 1
        if self._stop.is_set() or (isinstance(error, ConnectionLostError) and self._losses < LOSSES_BORNE):
            return
        log.warning("%s: %s %s", self.instance.node_id, error.message, error.next_step)
        step = error.step if isinstance(error, StepError) else CONNECT
        advice = f" ({error.next_step.rstrip('.')})" if error.next_step else ""
        self._common.failed(self.instance, step, error.message + advice)
