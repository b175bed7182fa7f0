"""How a nursery (a process that has torch loaded, ``bamboo_trainer.nursery``) forks children for the one that asks it.

A newborn becomes the *asker's* child, not the nursery's: a middle process forks it and ends, and the asker, which
adopts orphans while it asks, inherits it. So the asker reaps it and may signal its number, it dies with the asker, and
the nursery may be killed at any moment without harm to those that were born. See docs/nursery.md.

Here is what is asked for, and the asker's side; the nursery's is ``bearing``. The two talk over a SOCK_SEQPACKET pair:
``READY`` once, then one reply a birth. Linux only. A nursery that several commands share listens at a path, and what it
bears for them is nobody's child.
"""

import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum

NURSERY_VARIABLE = "BAMBOO_NURSERY"
"""``fd:pid`` of the nursery that a newborn node has beside it; in the nursery itself: its end of the pair."""
SHARED_VARIABLE = "BAMBOO_SHARED_NURSERY"
"""Where a nursery listens that was started with this path as its argument; whoever runs commands may set it."""
ROOM_VARIABLE = "BAMBOO_NURSERY_ROOM"
ROOM_BYTES = 16 << 10
"""What a newborn's environment may be longer than that which its nursery was started with."""
READY = b"ready"
MESSAGE_BYTES = 1 << 17
SHARED_ANSWER_S = 5.0
"""For either side of a shared nursery: who is slower is left alone."""
UNKNOWN_EXIT = 255
COMMAND = (sys.executable, "-m", "bamboo_trainer.nursery")
ASKED_ONCE = ("bamboo_trainer.check", "bamboo_trainer.export", "bamboo_trainer.evaluate")
"""Programs that read one order from standard input and answer it."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


class BirthError(Exception):
    """The nursery is not there or could not do it; nobody was born. Start the process cold."""


class BirthKind(StrEnum):
    WORKER = "worker"
    """A child of its asker, with whom it dies."""
    NODE = "node"
    """Leads a session of its own, with a nursery of its own beside it, executes its command and outlives its asker."""
    CHECK = "check"
    """A program of ``ASKED_ONCE``, the command's last word; nobody's child. The socket is its standard input and
    output, and ends with a line that has the exit code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Birth:
    """What is asked for. Two open files travel with it (log, socket), for a node the log alone."""

    command: tuple[str, ...]
    """What a node executes; of others only what ``ps`` shows."""
    environment: Mapping[str, str]
    """All of it, but for the number of the control socket."""
    folder: str
    """The working directory."""
    kind: BirthKind


class Child:
    """A newborn, for the process that asked for it. Its number is its own until it has been reaped here."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._exit_code: int | None = None

    def poll(self) -> int | None:
        """The exit code, negative for a signal, ``UNKNOWN_EXIT`` if others reaped it; None while it lives."""
        return self._reap(os.WNOHANG)

    def wait(self) -> int:
        exit_code = self._reap(0)
        assert exit_code is not None
        return exit_code

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def _reap(self, options: int) -> int | None:
        if self._exit_code is None:
            try:
                pid, status = os.waitpid(self.pid, options)
            except ChildProcessError:  # psutil reaps what it waits for
                self._exit_code = UNKNOWN_EXIT
            else:
                self._exit_code = os.waitstatus_to_exitcode(status) if pid else None
        return self._exit_code


def environment_for(environment: Mapping[str, str], end: socket.socket) -> dict[str, str]:
    """What a nursery is started with (``COMMAND``); it inherits ``end`` of a SOCK_SEQPACKET pair."""
    return {**with_room(environment), NURSERY_VARIABLE: str(end.fileno())}


def with_room(environment: Mapping[str, str]) -> dict[str, str]:
    """What is longer than its nursery's own environment finds place in it."""
    return {**environment, ROOM_VARIABLE: "." * ROOM_BYTES}


@contextlib.contextmanager
def adopting() -> Iterator[None]:
    """Orphans among this process's descendants become its children meanwhile. Raises BirthError."""
    if _libc is None or _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1) != 0:
        raise BirthError("this system gives a process no orphans")
    try:
        yield
    finally:
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 0)


def ask(nursery: socket.socket, birth: Birth, files: Sequence[int]) -> None:
    """To be answered while ``adopting``. Raises OSError when the nursery is gone."""
    socket.send_fds(nursery, [json.dumps(asdict(birth)).encode()], files)


def ask_shared(path: str, birth: Birth, files: Sequence[int]) -> int:
    """The newborn's number; it is no child of this process. Raises BirthError, OSError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as nursery:
        nursery.settimeout(SHARED_ANSWER_S)
        nursery.connect(path)
        if nursery.recv(len(READY)) != READY:
            raise BirthError("the nursery has ended")
        ask(nursery, birth, files)
        return pid_in(nursery.recv(MESSAGE_BYTES))


def inherited() -> tuple[socket.socket, int] | None:
    """The nursery that this process was born with: its link and its number. None: none, or it was taken before."""
    said = os.environ.pop(NURSERY_VARIABLE, "")
    if not said:
        return None
    number, pid = map(int, said.split(":"))
    os.set_inheritable(number, False)
    return socket.socket(fileno=number), pid


def pid_in(reply: bytes) -> int:
    """Raises BirthError."""
    if not reply:
        raise BirthError("the nursery has ended")
    if not reply.isdigit():
        raise BirthError(reply.decode(errors="replace"))
    return int(reply)


def die_with_parent() -> None:
    """Also a stopped process, which sees no socket close. The parent may be gone already: look at it afterwards."""
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
