"""The nursery of this machine: torch is loaded once for all nodes of the local cloud, not once a node."""

import contextlib
import logging
import os
import select
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bamboo_agent.config import has_nursery
from bamboo_trainer import births
from bamboo_trainer.births import Birth, BirthError, BirthKind, Child

log = logging.getLogger(__name__)

LOAD_S = 90.0
ANSWER_S = 5.0


class Nursery:
    """The caller lets one thread in at a time. What goes wrong here costs time only: nodes boot without it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | Child | None = None
        self._link: socket.socket
        self._begun_at = time.monotonic()
        self._has_loaded = False
        self._is_of_use = has_nursery()
        if (found := births.inherited()) is not None:
            self._link, pid = found
            self._link.setblocking(False)
            self._process = Child(pid)

    def begin(self) -> None:
        """Have one, if there can be one."""
        if self._process is not None or not self._is_of_use:
            return
        self._link, end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._link.setblocking(False)
        self._begun_at = time.monotonic()
        with end:
            try:
                self._process = subprocess.Popen(
                    births.COMMAND,
                    stdin=subprocess.DEVNULL,
                    pass_fds=(end.fileno(),),
                    env=births.environment_for(os.environ, end),
                )
            except OSError as error:
                self._link.close()
                log.error("the nursery could not be started: %s", error)

    def is_loading(self) -> bool:
        """Better wait: nodes that boot meanwhile would load the same things, each for itself."""
        if self._process is None or self._has_loaded:
            return False
        try:
            said = self._link.recv(len(births.READY))
        except BlockingIOError:
            if time.monotonic() < self._begun_at + LOAD_S:
                return True
            said = b""
        self._has_loaded = self._is_of_use = said == births.READY
        if not self._has_loaded:
            log.warning("the nursery could not load: every node starts its own, or its workers cold")
            self.end()
        return False

    def bear_node(self, command: Sequence[str], *, folder: Path, environment: Mapping[str, str]) -> Child:
        """As ``processes.start`` does. Raises BirthError, OSError."""
        if self._process is None or not self._has_loaded:
            raise BirthError("there is no nursery")
        birth = Birth(command=tuple(command), environment=environment, folder=str(folder), kind=BirthKind.NODE)
        with (folder / "agent.log").open("ab") as output, births.adopting():
            try:
                births.ask(self._link, birth, (output.fileno(),))
                select.select((self._link,), (), (), ANSWER_S)
                answer = self._link.recv(births.MESSAGE_BYTES)
            except OSError as error:
                answer = b""
                log.warning("the nursery does not answer: %r", error)
        if not answer:
            self.end()
        return Child(births.pid_in(answer))

    def end(self) -> None:
        if self._process is None:
            return
        self._has_loaded = False
        self._link.close()
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()
        self._process = None
