"""The agent's side of this node's nursery: a process with torch loaded that forks workers in milliseconds.

It loads in the background as soon as the agent runs; a worker that is asked for meanwhile waits for it, since a cold
start would load the same things again. Whatever goes wrong here is a BirthError, and the worker is started cold.
"""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from bamboo_trainer import births
from bamboo_trainer.births import Birth, BirthError

log = logging.getLogger(__name__)

LOAD_S = 90.0
"""Whoever has waited that long for a nursery to load kills it and starts cold."""
BIRTH_S = 5.0
"""A nursery that takes longer to answer is killed; it takes 0.1 s on a busy laptop."""
FIRST_PAUSE_S = 1.0
"""Between the end of a nursery and the next one; doubled each time."""


class Process(Protocol):
    """A child of this process; ``asyncio.subprocess.Process`` is one."""

    @property
    def pid(self) -> int: ...
    async def wait(self) -> int: ...
    def kill(self) -> None: ...


class Newborn:
    """A child that a nursery forked for this process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._child = births.Child(pid)
        self._ended = asyncio.Event()
        self._pidfd = os.pidfd_open(pid)
        asyncio.get_running_loop().add_reader(self._pidfd, self._see_the_end)

    async def wait(self) -> int:
        await self._ended.wait()
        return self._child.wait()

    def kill(self) -> None:
        self._child.kill()

    def _see_the_end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._ended.set()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Life:
    """One nursery process."""

    process: Process
    link: socket.socket
    loaded: "asyncio.Future[bool]"
    """False: it ended before."""


class Nursery:
    """``run`` keeps it; ``bear`` may be called at any time."""

    def __init__(self) -> None:
        self._asking = asyncio.Lock()
        self._begun = asyncio.Event()
        self._life: _Life | None = None

    async def run(self) -> None:
        """One nursery after the other; returns when one could not load. Its nursery ends when this is cancelled."""
        pause_s = FIRST_PAUSE_S
        try:
            while await self._live(_inherited() or await _start()):
                await asyncio.sleep(pause_s)
                pause_s *= 2
            log.warning("the nursery could not load: workers are started cold from now on")
        except OSError as error:
            log.error("the nursery could not be started, and workers are started cold: %s", error)
        finally:
            self._begun.set()

    async def _live(self, life: _Life) -> bool:
        """Until its end; whether it had loaded."""
        self._life = life
        self._begun.set()
        try:
            said = await asyncio.get_running_loop().sock_recv(life.link, len(births.READY))
            life.loaded.set_result(said == births.READY)
            if said:
                log.info("the nursery has loaded, process %d", life.process.pid)
            log.warning("the nursery ended with exit code %d", await life.process.wait())
        except asyncio.CancelledError:
            _kill(life)
            raise
        finally:
            self._life = None
            if not life.loaded.done():
                life.loaded.set_result(False)
        async with self._asking:  # who asks it now reads its end
            life.link.close()
        return life.loaded.result()

    async def bear(self, birth: Birth, files: Sequence[int]) -> Newborn:
        """A nursery that loads is waited for. Raises BirthError."""
        async with self._asking:
            await self._begun.wait()
            life = self._life
            if life is None:
                raise BirthError("there is no nursery")
            try:
                async with asyncio.timeout(LOAD_S):
                    if not await asyncio.shield(life.loaded):
                        raise BirthError("the nursery could not load")
                with births.adopting():
                    births.ask(life.link, birth, files)
                    async with asyncio.timeout(BIRTH_S):
                        answer = await asyncio.get_running_loop().sock_recv(life.link, births.MESSAGE_BYTES)
                    return Newborn(births.pid_in(answer))
            except OSError as error:  # TimeoutError is one
                _kill(life)  # its late answer would be taken for one to the next question
                raise BirthError(f"the nursery does not answer: {error!r}") from error


def _kill(life: _Life) -> None:
    with contextlib.suppress(ProcessLookupError):
        life.process.kill()


def _inherited() -> _Life | None:
    """The one that a node of the local cloud was born with."""
    found = births.inherited()
    if found is None:
        return None
    link, pid = found
    return _life(Newborn(pid), link)


async def _start() -> _Life:
    """Raises OSError."""
    ours, end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with end:
        process = await asyncio.create_subprocess_exec(
            *births.COMMAND,
            stdin=asyncio.subprocess.DEVNULL,
            pass_fds=(end.fileno(),),
            env=births.environment_for(os.environ, end),
            preexec_fn=births.die_with_parent,
        )
    return _life(process, ours)


def _life(process: Process, link: socket.socket) -> _Life:
    link.setblocking(False)
    return _Life(process=process, link=link, loaded=asyncio.get_running_loop().create_future())
