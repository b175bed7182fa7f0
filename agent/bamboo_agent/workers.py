"""The worker processes of this node: start, tell, stop, watch.

A worker is a child in the agent's own process group with one end of a socket pair; it exits when that end closes. It
is forked by the node's nursery or, where there is none, started cold; nothing else can tell which. A worker id is used
for one process only: asked again to start one that has ended, the agent does nothing, since ``WorkerExited`` is on its
way to the coordinator or has been told already.
"""

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, cast

from bamboo_trainer import births
from bamboo_trainer.births import Birth, BirthError, BirthKind
from bamboo_trainer.control import (
    Adopt,
    Exit,
    Prepared,
    ToWorker,
    WorkerBeat,
    WorkerReady,
    decode_from_worker,
    encode,
)
from bamboo_trainer.plan import WorkerId

from bamboo_agent import accelerators
from bamboo_agent.channel import LineChannel
from bamboo_agent.messages import AgentMessage, WorkerExited, WorkerSaid, WorkerStarted, WorkerState
from bamboo_agent.nursery import Nursery, Process

log = logging.getLogger(__name__)

GRACE_S = 5.0
"""How long a worker that was asked to exit may take before it is killed."""
DRAIN_S = 0.5
"""How long what a dead worker has said may take to be read, should a child of its keep the socket open."""
TAIL_BYTES = 8192
LOG_LIMIT_BYTES = 16 << 20
"""A longer log is set aside (one old one is kept) when the next worker of its accelerator starts."""


@dataclass(slots=True, kw_only=True)
class _Worker:
    worker_id: WorkerId
    accelerator: int
    channel: LineChannel
    process: Process | None = None
    """None: it is about to be."""
    killed: bool = False
    log_start: int = 0
    """Where this worker's own lines begin in its accelerator's log."""
    heard_at: float = field(default_factory=time.monotonic)
    ready: WorkerReady | None = None
    run_id: str | None = None
    generation: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class Workers:
    def __init__(
        self,
        *,
        command: tuple[str, ...],
        environment: dict[str, str],
        folder: Path,
        devices: tuple[str, ...],
        say: Callable[[AgentMessage], None],
        nursery: Nursery | None = None,
    ) -> None:
        """``command`` starts a worker cold. ``environment`` is added to the agent's own; ``folder`` gets a log for each
        accelerator, of which ``devices`` are real; ``say`` takes what the coordinator is to hear, in order.
        """
        self._command = command
        self._environment = environment
        self._folder = folder
        self._devices = devices
        self._say = say
        self._nursery = nursery
        self._alive: dict[WorkerId, _Worker] = {}
        self._ended: set[WorkerId] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def states(self) -> tuple[WorkerState, ...]:
        return tuple(
            WorkerState(
                worker_id=worker.worker_id,
                ready=worker.ready is not None,
                address=worker.ready.address if worker.ready else "",
                port=worker.ready.port if worker.ready else 0,
                run_id=worker.run_id,
                generation=worker.generation,
            )
            for worker in self._alive.values()
        )

    def silence_s(self) -> dict[str, float]:
        """Seconds since each worker was last heard."""
        now = time.monotonic()
        return {worker.worker_id: now - worker.heard_at for worker in self._alive.values() if worker.process}

    def start(self, worker_id: WorkerId, accelerator: int) -> None:
        """Comes back at once: the nursery may have to load. What the worker is told meanwhile, it finds."""
        if worker_id in self._alive or worker_id in self._ended:
            return
        ours, theirs = socket.socketpair()
        worker = self._alive[worker_id] = _Worker(
            worker_id=worker_id, accelerator=accelerator, channel=LineChannel(ours)
        )
        self._begin(self._live(worker, theirs))

    def tell(self, worker_id: WorkerId, message: ToWorker) -> None:
        worker = self._alive.get(worker_id)
        if worker is None:
            log.info("dropped %s for worker %s, which is not there", message.kind, worker_id)
            return
        if isinstance(message, Adopt):
            worker.generation = message.plan.generation
        worker.channel.write(encode(message))

    def stop(self, worker_id: WorkerId, *, fence: bool, reason: str) -> None:
        """At once with ``fence``; else the worker is asked, and killed when ``GRACE_S`` have passed."""
        worker = self._alive.get(worker_id)
        if worker is None:
            return
        log.info("worker %s is %s: %s", worker_id, "killed" if fence else "asked to exit", reason)
        if fence or worker.process is None:
            _kill(worker)
        else:
            self._begin(self._end(worker))

    async def end_all(self, *, fence: bool, reason: str) -> None:
        """Returns when no worker is left."""
        for worker_id in tuple(self._alive):
            self.stop(worker_id, fence=fence, reason=reason)
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _live(self, worker: _Worker, control: socket.socket) -> None:
        """All of a worker's life."""
        try:
            with control:
                worker.process = await self._spawn(worker, control)
        except OSError as error:
            log.error("worker %s was not started with %s: %s", worker.worker_id, self._command, error)
            await self._bury(worker, exit_code=127, log_tail=f"not started: {error}")
            return
        worker.heard_at = time.monotonic()
        log.info("worker %s started, process %d", worker.worker_id, worker.process.pid)
        self._say(WorkerStarted(worker_id=worker.worker_id, pid=worker.process.pid))
        if worker.killed:
            _kill(worker)
        exit_code = await self._watch(worker, worker.process)
        log.info("worker %s ended with exit code %d", worker.worker_id, exit_code)
        log_tail = _tail(self._log_path(worker.accelerator), worker.log_start)
        await self._bury(worker, exit_code=exit_code, log_tail=log_tail)

    async def _spawn(self, worker: _Worker, control: socket.socket) -> Process:
        """By the nursery if that can be. Raises OSError."""
        own = accelerators.environment_of(worker.accelerator, self._devices)
        environment = os.environ | self._environment | own | {"BAMBOO_WORKER_ID": worker.worker_id}
        with self._open_log(worker) as output:
            worker.log_start = output.tell()
            if self._nursery is not None:
                birth = Birth(command=self._command, environment=environment, folder=os.getcwd(), kind=BirthKind.WORKER)
                try:
                    return await self._nursery.bear(birth, (output.fileno(), control.fileno()))
                except BirthError as error:
                    log.warning("worker %s is started cold: %s", worker.worker_id, error)
            if worker.killed:
                raise OSError("it is not wanted any more")
            return await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(control.fileno(),),
                env=environment | {"BAMBOO_CONTROL_FD": str(control.fileno())},
                preexec_fn=births.die_with_parent,
            )

    def _open_log(self, worker: _Worker) -> BinaryIO:
        path = self._log_path(worker.accelerator)
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_size > LOG_LIMIT_BYTES:
                path.replace(path.with_suffix(".log.1"))
        output = path.open("ab", buffering=0)
        output.write(f"--- worker {worker.worker_id}\n".encode())
        return cast(BinaryIO, output)

    def _log_path(self, accelerator: int) -> Path:
        """``worker.log``, ``worker-1.log``, …"""
        return self._folder / (f"worker-{accelerator}.log" if accelerator else "worker.log")

    async def _watch(self, worker: _Worker, process: Process) -> int:
        """The exit code. What the worker said last is relayed before."""
        relay = self._begin(self._relay(worker))
        exit_code = await process.wait()
        await asyncio.wait({relay}, timeout=DRAIN_S)
        relay.cancel()
        await asyncio.wait({relay})
        return exit_code

    async def _bury(self, worker: _Worker, *, exit_code: int, log_tail: str) -> None:
        worker.ended.set()
        await worker.channel.close()
        del self._alive[worker.worker_id]
        self._ended.add(worker.worker_id)
        self._say(WorkerExited(worker_id=worker.worker_id, exit_code=exit_code, log_tail=log_tail))

    async def _relay(self, worker: _Worker) -> None:
        async for line in worker.channel.lines():
            worker.heard_at = time.monotonic()
            try:
                message = decode_from_worker(line)
            except ValueError as error:
                log.error("worker %s said something unknown: %.200r (%.300s)", worker.worker_id, line, error)
                continue
            match message:
                case WorkerBeat():
                    continue
                case WorkerReady():
                    worker.ready = message
                case Prepared(run_id=run_id):
                    worker.run_id = run_id
            self._say(WorkerSaid(worker_id=worker.worker_id, message=message))

    async def _end(self, worker: _Worker) -> None:
        worker.channel.write(encode(Exit()))
        try:
            async with asyncio.timeout(GRACE_S):
                await worker.ended.wait()
        except TimeoutError:
            log.info("worker %s did not exit within %g s and is killed", worker.worker_id, GRACE_S)
            _kill(worker)

    def _begin(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _kill(worker: _Worker) -> None:
    """One that is not born yet, as soon as it is."""
    worker.killed = True
    if worker.process is not None:
        with contextlib.suppress(ProcessLookupError):
            worker.process.kill()


def _tail(path: Path, start: int) -> str:
    """The last ``TAIL_BYTES`` of a log from ``start`` on, in whole lines."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(start, size - TAIL_BYTES))
            text = file.read(TAIL_BYTES).decode(errors="replace")
    except OSError as error:
        return f"(no log: {error})"
    return text if size - start <= TAIL_BYTES else text.partition("\n")[2]
