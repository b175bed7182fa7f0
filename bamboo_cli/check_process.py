"""A process of the trainer that is asked once, such as the one that tries a recipe: born of a nursery that commands
share where there is one, else started cold.
"""

import contextlib
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Protocol

from bamboo_trainer import births
from bamboo_trainer.births import Birth, BirthError, BirthKind

log = logging.getLogger(__name__)

CHECK = "bamboo_trainer.check"
COMMAND = (sys.executable, "-m", CHECK)
PIECE_BYTES = 1 << 16


class Check(Protocol):
    def communicate(self, spec: bytes, *, timeout_s: float) -> tuple[int, bytes, bytes]:
        """Exit code, standard output and error. Raises subprocess.TimeoutExpired; call again, without ``spec``."""


@contextlib.contextmanager
def begin(program: str = CHECK) -> Iterator[Check]:
    """One of ``births.ASKED_ONCE``. It does not outlive this context."""
    command = (*COMMAND[:-1], program)
    born = _bear(command)
    if born is not None:
        with contextlib.closing(born):
            yield born
        return
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as cold:
        try:
            yield _Cold(cold)
        finally:
            cold.kill()  # does nothing once it has ended


class _Cold:
    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process

    def communicate(self, spec: bytes, *, timeout_s: float) -> tuple[int, bytes, bytes]:
        stdout, stderr = self._process.communicate(spec, timeout=timeout_s)
        return self._process.returncode, stdout, stderr


class _Born:
    """No child of this process: its exit code is its last line, its number its own as long as it has the link."""

    def __init__(self, pid: int, link: socket.socket, errors: int) -> None:
        self._pid = pid
        self._link, self._errors = link, errors
        self._heard = {link.fileno(): b"", errors: b""}
        self._open = set(self._heard)

    def communicate(self, spec: bytes, *, timeout_s: float) -> tuple[int, bytes, bytes]:
        if spec:
            with contextlib.suppress(ConnectionError):  # it is dead; what it said is still there
                self._link.sendall(spec)
                self._link.shutdown(socket.SHUT_WR)
        deadline = time.monotonic() + timeout_s
        while self._open:
            ready, _, _ = select.select(tuple(self._open), (), (), max(0.0, deadline - time.monotonic()))
            if not ready:
                raise subprocess.TimeoutExpired(COMMAND, timeout_s)
            for file in ready:
                self._hear(file)
        stdout, _, exit_code = self._heard[self._link.fileno()].rstrip().rpartition(b"\n")
        return int(exit_code) if exit_code.isdigit() else births.UNKNOWN_EXIT, stdout, self._heard[self._errors]

    def _hear(self, file: int) -> None:
        try:
            piece = os.read(file, PIECE_BYTES)
        except ConnectionError:
            piece = b""
        self._heard[file] += piece
        if not piece:
            self._open.discard(file)

    def close(self) -> None:
        if self._link.fileno() in self._open:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
        self._link.close()
        os.close(self._errors)


def _bear(command: tuple[str, ...]) -> _Born | None:
    shared = os.environ.get(births.SHARED_VARIABLE)
    if not shared:
        return None
    birth = Birth(command=command, environment=dict(os.environ), folder=os.getcwd(), kind=BirthKind.CHECK)
    link, its_link = socket.socketpair()
    errors, its_errors = os.pipe()
    try:
        return _Born(births.ask_shared(shared, birth, (its_errors, its_link.fileno())), link, errors)
    except (OSError, BirthError) as error:  # started cold, it does the same
        log.warning("the nursery at %s could not be used: %s", shared, error)
        link.close()
        os.close(errors)
        return None
    finally:
        its_link.close()
        os.close(its_errors)
