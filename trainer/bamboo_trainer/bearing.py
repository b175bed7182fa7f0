"""The nursery's side of a birth: who asks is answered, and the newborn goes on from here. See ``births``, and
docs/nursery.md for what happens when either side is killed at any of these instants.
"""

import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from bamboo_trainer import shown
from bamboo_trainer.births import (
    COMMAND,
    MESSAGE_BYTES,
    NURSERY_VARIABLE,
    READY,
    SHARED_ANSWER_S,
    Birth,
    BirthError,
    BirthKind,
    die_with_parent,
)

_GO = b"!"


def serve_all(listener: socket.socket) -> Birth | None:
    """Whoever connects, one after the other, for ever. Returns in a newborn only, as ``serve`` does."""
    nursery = os.getpid()
    os.register_at_fork(after_in_child=listener.close)  # nobody shall connect to a child when the nursery is gone
    while os.getpid() == nursery:
        asker, _ = listener.accept()
        asker.settimeout(SHARED_ANSWER_S)
        with asker, contextlib.suppress(TimeoutError):
            if born := serve(asker):
                return born
    return None


def serve(asker: socket.socket) -> Birth | None:
    """Bears children. In a newborn, which goes on from here: what was asked for. None: the asker is gone."""
    asker_pid = os.getppid()
    try:
        asker.send(READY)
        while True:
            message, files, _, _ = socket.recv_fds(asker, MESSAGE_BYTES, 2, socket.MSG_CMSG_CLOEXEC)
            if not message:
                return None
            try:
                birth = _decode(message)
                _check_python(birth)
                _check_room(birth)
                born = _bear()
            except (BirthError, OSError, ValueError) as error:
                asker.send(f"the nursery could not do it: {error}".encode())
            else:
                if born is None:
                    asker.close()
                    return _begin(birth, files, asker_pid)
                asker.send(str(born.pid).encode())
                os.write(born.go, _GO)
                os.close(born.go)
            for file in files:
                os.close(file)
    except ConnectionError:
        return None


def _decode(message: bytes) -> Birth:
    """Raises ValueError."""
    asked = json.loads(message)
    return Birth(**{**asked, "kind": BirthKind(asked["kind"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Born:
    """Ends itself unless it gets ``_GO``: so there is none of whom its asker has not been told."""

    pid: int
    go: int


def _bear() -> _Born | None:
    """None in the newborn, which is the asker's child by now. Raises BirthError, OSError."""
    if (num_threads := len(os.listdir("/proc/self/task"))) != 1:
        raise BirthError(f"it has {num_threads} threads, and what they hold locked would stay locked in a child")
    number, number_in = os.pipe()
    go, go_in = os.pipe()
    middle = os.fork()
    if middle == 0:
        newborn = -1
        try:
            os.close(go_in)
            newborn = os.fork()
            if newborn != 0:
                os.write(number_in, str(newborn).encode())
        finally:
            if newborn != 0:
                os._exit(0)
        os.close(number)
        os.close(number_in)
        if os.read(go, 1) != _GO:
            os._exit(1)
        os.close(go)
        return None
    os.close(number_in)
    os.close(go)
    os.waitpid(middle, 0)
    told = os.read(number, 32)
    os.close(number)
    if not told:
        os.close(go_in)
        raise BirthError("the system let it fork no more")
    return _Born(pid=int(told), go=go_in)


def _begin(birth: Birth, files: Sequence[int], asker_pid: int) -> Birth | None:
    """In the newborn; returns what ``serve`` does."""
    log, *control = files
    if birth.kind is BirthKind.NODE:
        os.setsid()
    elif birth.kind is BirthKind.WORKER:
        die_with_parent()
        if os.getppid() != asker_pid:
            os._exit(1)
    nowhere = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nowhere, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(nowhere)
    os.close(log)
    if sys.path[0] == os.getcwd():  # ``python -m`` put it there
        sys.path[0] = birth.folder
    os.chdir(birth.folder)
    os.environ.clear()
    os.environ.update(birth.environment)
    shown.show(COMMAND if birth.kind is BirthKind.NODE else birth.command, birth.environment)
    if birth.kind is BirthKind.NODE:
        return _become_node(birth)
    os.environ["BAMBOO_CONTROL_FD"] = str(control[0])
    signal.signal(signal.SIGINT, signal.default_int_handler)  # an agent's child is never started with it ignored
    return birth


def _become_node(birth: Birth) -> Birth | None:  # noqa: RET503 - execve does not return
    """This process becomes the agent (or another daemon); its child is its nursery, and returns as ``serve`` does."""
    node_pid = os.getpid()
    agents_end, end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    nursery = os.fork()
    if nursery == 0:
        die_with_parent()
        if os.getppid() != node_pid:
            os._exit(1)
        agents_end.close()
        return serve(end)
    agents_end.set_inheritable(True)
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by Python, and exec would hand that on
        signal.signal(ignored, signal.SIG_DFL)
    environment = {**birth.environment, NURSERY_VARIABLE: f"{agents_end.fileno()}:{nursery}"}
    os.execve(birth.command[0], birth.command, environment)


def _check_python(birth: Birth) -> None:
    """Raises BirthError."""
    if birth.kind is not BirthKind.WORKER and birth.command[0] != sys.executable:
        raise BirthError(f"what it has loaded is that of {sys.executable}")


def _check_room(birth: Birth) -> None:
    """Raises BirthError."""
    if shown.num_bytes(birth.environment) > (room := shown.room_bytes()):
        raise BirthError(f"an environment of more than {room} bytes")
