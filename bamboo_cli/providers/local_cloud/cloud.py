"""The local cloud: does what ``model.due`` says is due, and what the API asks. One lock, one state file."""

import contextlib
import logging
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from bamboo_cli.errors import CapacityError, CloudError, InstanceGoneError
from bamboo_cli.providers.base import Instance, InstanceState
from bamboo_cli.providers.local_cloud import addresses, home, store
from bamboo_cli.providers.local_cloud.machines import Machines, born_at
from bamboo_cli.providers.local_cloud.model import CloudState, Due, Rented, Request, due, take
from bamboo_cli.providers.local_cloud.trace import Change, Replay

log = logging.getLogger(__name__)

FORGET_S = 24 * 3600.0
"""An ended instance is listed at least that long, and its logs are kept."""


class CloudClosed(Exception):
    """The daemon is on its way out: whoever asks has to start another."""


class LocalCloud:
    """All methods may be called from any thread. ``tick`` must be called often; it does what time brings."""

    def __init__(self, folder: Path) -> None:
        """Takes up the instances of an earlier life. The caller holds the folder's lock. Raises StateError, OSError."""
        self.closed = False
        self._lock = threading.RLock()
        self._folder = folder
        self._state_path = folder / "state.json"
        state = store.load(self._state_path)
        self._created = dict(state.created)
        self._replays = dict(state.replays)
        self._rented = {rented.instance_id: rented for rented in state.rented}
        self._machines = Machines(folder)
        self._unsaved = False
        self._busy_at = time.monotonic()
        self._aliases = addresses.has_aliases()
        for rented in list(self._rented.values()):
            if rented.live:
                self._take_up(rented)
            elif rented.ended_at is not None and rented.ended_at < time.time() - FORGET_S:
                self._forget(rented)

    # --- what the API asks -------------------------------------------------------------------------------------

    def create(self, request: Request) -> Instance:
        """Raises CapacityError, CloudError; every call raises CloudClosed."""
        with self._asked():
            for rented in self._rented.values():
                if rented.request.token == request.token:
                    return rented.public()
            taken = sum(r.live and r.request.zone == request.zone for r in self._rented.values())
            if request.capacity is not None and taken >= request.capacity:
                raise CapacityError(
                    f"zone {request.zone} has no capacity for another instance ({taken} of {request.capacity} taken)",
                    next_step="Use another zone, or raise its capacity in the job file.",
                )
            replay = self._replays.get(request.config.cluster_id)
            if replay is not None and len(self._staying(request.config.cluster_id)) >= replay.capacity:
                raise CapacityError(f"the trace that the cluster follows has room for {replay.capacity} instances now")
            self._machines.get_ready()
            try:
                return self._launch(request).public()
            except OSError as error:
                raise CloudError(
                    f"the local cloud could not set up an instance in {self._folder}: {error}",
                    next_step="Free the disk or the ports that are named, then try again.",
                ) from error

    def describe(self, cluster_id: str) -> tuple[Instance, ...]:
        with self._asked():
            return tuple(r.public() for r in self._rented.values() if r.request.config.cluster_id == cluster_id)

    def terminate(self, instance_ids: tuple[str, ...]) -> None:
        """Their processes are gone on return; what is unknown or has ended is passed over."""
        with self._asked():
            for rented in [self._rented[i] for i in instance_ids if i in self._rented]:
                if rented.live:
                    self._put(rented.unwanted(time.time()))
            self.tick()

    def preempt(self, instance_id: str, notice_s: float | None) -> None:
        """Raises InstanceGoneError."""
        with self._asked():
            rented = self._rented.get(instance_id)
            if rented is None or not rented.live:
                raise InstanceGoneError(
                    f"instance {instance_id} cannot be preempted: it {'has ended' if rented else 'is unknown'}",
                    next_step="`bamboo status` lists the nodes that live.",
                )
            log.info("%s is preempted by hand, notice %s", instance_id, notice_s)
            self._put(rented.noticed(notice_s=notice_s, now=time.time()))
            self.tick()

    def follow(self, cluster_id: str, changes: Sequence[Change], seed: int) -> None:
        with self._asked():
            if cluster_id not in self._replays:
                self._replays[cluster_id] = Replay(changes=tuple(changes), seed=seed, started_at=time.time())
                self.tick()
                self._save()

    def close_if_empty(self) -> bool:
        """Take no more calls, unless an instance lives. Returns ``closed``."""
        with self._lock:
            self.closed = self.closed or not self._has_live()
            return self.closed

    def close_machines(self) -> None:
        """Instances live on."""
        with self._lock:
            self._machines.close()

    @contextlib.contextmanager
    def _asked(self) -> Iterator[None]:
        with self._lock:
            if self.closed:
                raise CloudClosed
            self._busy_at = time.monotonic()
            yield

    # --- what time brings --------------------------------------------------------------------------------------

    @property
    def idle_s(self) -> float:
        """Seconds since anything was asked or happened; 0 while an instance lives."""
        with self._lock:
            return 0.0 if self._has_live() else time.monotonic() - self._busy_at

    def _has_live(self) -> bool:
        return any(rented.live for rented in self._rented.values())

    def tick(self) -> None:
        with self._lock:
            now = time.time()
            if self._unsaved:
                self._save()
            for cluster_id in self._replays:
                self._replay(cluster_id, now)
            for rented in list(self._rented.values()):
                action = due(rented, alive=self._machines.is_alive(rented), now=now)
                if action is not Due.NOTHING:
                    self._busy_at = time.monotonic()
                match action:
                    case Due.BOOT:
                        self._boot(rented)
                    case Due.PREEMPT:
                        log.info("%s is preempted by chance", rented.instance_id)
                        self._put(rented.noticed(notice_s=rented.request.notice_s, now=now))
                    case Due.END:
                        self._end(rented)

    def _replay(self, cluster_id: str, now: float) -> None:
        while change := self._replays[cluster_id].next_due(now):
            taken = take(self._replays[cluster_id], change, self._staying(cluster_id), now=now)
            log.info("%s: the trace takes %d and leaves room for %d", cluster_id, len(taken), change.capacity)
            self._replays[cluster_id] = self._replays[cluster_id].done()
            self._rented |= {rented.instance_id: rented for rented in taken}
            self._save()

    def _staying(self, cluster_id: str) -> list[Rented]:
        ours = [r for r in self._rented.values() if r.request.config.cluster_id == cluster_id]
        return [r for r in ours if r.state in (InstanceState.PENDING, InstanceState.RUNNING)]

    def _launch(self, request: Request) -> Rented:
        instance_id = f"i-{secrets.token_hex(4)}"
        address = self._free_address()
        port = self._machines.open_endpoint(instance_id, address, 0, self._view(instance_id))
        rented = Rented(
            instance_id=instance_id,
            request=request,
            index=self._created.get(request.config.cluster_id, 0),
            address=address,
            metadata_port=port,
            launched_at=time.time(),
        )
        try:
            home.write_config(self._folder, rented)
            self._created[request.config.cluster_id] = rented.index + 1
            self._rented[instance_id] = rented
            self._store()
        except OSError:
            self._rented.pop(instance_id, None)
            self._machines.close_endpoint(instance_id)
            raise
        log.info("%s (%s) launched in %s", instance_id, request.config.node_id, request.zone)
        return rented

    def _boot(self, rented: Rented) -> None:
        if not self._machines.are_ready:
            return  # it takes its time to boot
        try:
            pid = self._machines.boot(rented)
        except OSError as error:
            log.error("%s could not be booted: %s", rented.instance_id, error)
            self._end(rented)
            return
        self._put(rented.booted(pid=pid, pid_created_at=born_at(pid), now=time.time()))

    def _end(self, rented: Rented) -> None:
        """What will not die is tried again at the next tick."""
        if self._machines.end(rented):
            ended = rented.ended(time.time())
            log.info("%s ended: %s", ended.instance_id, ended.end_reason)
            self._put(ended)

    # --- state -------------------------------------------------------------------------------------------------

    def _take_up(self, rented: Rented) -> None:
        """After a restart: the metadata endpoint on its old port, and the agent that was started but not noted."""
        port = self._machines.open_endpoint(
            rented.instance_id, rented.address, rented.metadata_port, self._view(rented.instance_id)
        )
        if port != rented.metadata_port:
            rented = replace(rented, metadata_port=port)
            home.write_config(self._folder, rented)
        if rented.pid is None and (pid := self._machines.booted_before(rented)) is not None:
            rented = rented.booted(pid=pid, pid_created_at=born_at(pid), now=time.time())
        log.info("%s (%s) taken up again", rented.instance_id, rented.state)
        self._put(rented)

    def _put(self, rented: Rented) -> None:
        self._rented[rented.instance_id] = rented
        self._save()

    def _save(self) -> None:
        """A full disk must not let instances outlive their deadlines: saved at a later tick, then."""
        try:
            self._store()
        except OSError as error:
            if not self._unsaved:
                log.error("the state could not be saved, trying on: %s", error)
            self._unsaved = True
        else:
            self._unsaved = False

    def _store(self) -> None:
        """Raises OSError."""
        state = CloudState(created=self._created, rented=tuple(self._rented.values()), replays=self._replays)
        store.save(self._state_path, state)

    def _forget(self, rented: Rented) -> None:
        shutil.rmtree(home.of(self._folder, rented), ignore_errors=True)
        del self._rented[rented.instance_id]

    def _view(self, instance_id: str) -> Callable[[], Rented]:
        return lambda: self._rented[instance_id]

    def _free_address(self) -> str:
        if not self._aliases:
            return "127.0.0.1"
        return addresses.first_free({rented.address for rented in self._rented.values() if rented.live})
