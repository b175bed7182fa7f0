"""One SSH connection to one machine: opened with a pinned host key, commands that end in time, files. docs/remote.md.

Foreign exceptions end here: after ``connect_patiently`` everything raises ``bamboo_cli.errors.RemoteError``.
"""

import io
import logging
import shlex
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, Self, cast

import paramiko

from bamboo_cli.errors import ConnectionLostError, HostKeyError, UnreachableError
from bamboo_cli.providers.base import Reach
from bamboo_cli.remote import retry, sockets
from bamboo_cli.remote.bastion import Bastions

BANNER_S = 15.0
AUTHENTICATE_S = 15.0
TRY_S = BANNER_S + AUTHENTICATE_S
SHORTEST_TRY_S = 1.0
CHANNEL_S = 10.0
KEEPALIVE_S = 2
LAST_WORD_S = 1.0
"""How long after the end of its output a command's exit code may take."""
FIRST_PAUSE_S, LAST_PAUSE_S = 0.5, 5.0
LATE_S = 15.0
"""How much longer than the machine's own ``timeout`` we wait for a command."""
KILL_AFTER_S = 5
KILLED = 137
TIMED_OUT = (124, KILLED)
"""What ``timeout`` exits with when it has ended a command."""
READ_BYTES = 1 << 15

log = logging.getLogger(__name__)
logging.getLogger("paramiko").setLevel(logging.CRITICAL)  # what it logs as errors is daily bread here


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    exit_code: int
    timed_out: bool = False


class Stdin(Protocol):
    def write(self, data: bytes, /) -> object: ...


class Connection:
    """Any thread may run commands on it."""

    def __init__(self, transport: paramiko.Transport) -> None:
        self.transport = transport

    def run(
        self,
        script: str,
        *,
        timeout_s: float,
        keep: Callable[[bytes], None] = lambda piece: None,
        feed: Callable[[Stdin], None] | None = None,
    ) -> Finished:
        """Run a shell script. After ``timeout_s`` its process group is killed on the machine.

        ``keep`` gets what it writes, both streams together, as it comes; ``feed`` writes what it reads. Raises
        ConnectionLostError: then it may still run, but not for longer than ``timeout_s``.
        """
        deadline = time.monotonic() + timeout_s + LATE_S
        command = f"exec timeout -k {KILL_AFTER_S} {timeout_s:.3f} sh -c {shlex.quote(script)} 2>&1"
        try:
            with self.transport.open_session(timeout=CHANNEL_S) as channel:
                channel.set_combine_stderr(True)  # what the login shell says
                channel.exec_command(command)
                if feed is None:
                    channel.shutdown_write()
                else:
                    threading.Thread(target=_feed, args=(channel, feed), daemon=True).start()
                exit_code = self._read_to_the_end(channel, keep, deadline)
        except (OSError, EOFError, paramiko.SSHException) as error:
            raise ConnectionLostError(f"the SSH connection broke ({retry.in_words(error)})") from error
        return Finished(exit_code=exit_code, timed_out=exit_code in TIMED_OUT)

    def _read_to_the_end(self, channel: paramiko.Channel, keep: Callable[[bytes], None], deadline: float) -> int:
        """The exit code. A child that is left behind with the output open holds nobody up. Raises OSError, EOFError."""
        channel.settimeout(0.5)
        while True:
            try:
                piece = channel.recv(READ_BYTES)
            except TimeoutError:
                if channel.exit_status_ready() and not channel.recv_ready():
                    break
                if time.monotonic() > deadline:
                    raise
                continue
            if not piece:
                break
            keep(piece)
        if not channel.status_event.wait(max(0.0, deadline - time.monotonic())):
            raise TimeoutError("no exit code came")
        if channel.exit_status >= 0:
            return int(channel.exit_status)
        if not self.is_open:
            raise EOFError
        return KILLED  # it ended by a signal, of which paramiko tells nothing

    def talk(self, command: str) -> "Talk":
        """Start what goes on for long. Raises ConnectionLostError; also where the machine refuses a further session."""
        try:
            channel = self.transport.open_session(timeout=CHANNEL_S)
            channel.exec_command(command)
        except (OSError, EOFError, paramiko.SSHException) as error:
            raise ConnectionLostError(f"the SSH connection broke ({retry.in_words(error)})") from error
        return Talk(channel)

    def is_well(self) -> bool:
        """Whether the machine still answers on it; that it lets in no further session is an answer."""
        try:
            self.transport.open_session(timeout=CHANNEL_S).close()
        except paramiko.ChannelException:
            return True
        except (OSError, EOFError, paramiko.SSHException):
            return False
        return True

    def wait_for_its_end(self, at_most_s: float) -> None:
        self.transport.join(at_most_s)

    @property
    def is_open(self) -> bool:
        return bool(self.transport.is_active())

    def close(self) -> None:
        """From any thread; whoever waits on it gets ConnectionLostError."""
        self.transport.close()


class Talk:
    """With a command that runs on the machine, until either side ends it."""

    def __init__(self, channel: paramiko.Channel) -> None:
        self._channel = channel

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError, EOFError, paramiko.SSHException):
            self._channel.close()

    def say(self, data: bytes) -> None:
        """Raises ConnectionLostError."""
        try:
            self._channel.sendall(data)
        except (OSError, EOFError, paramiko.SSHException) as error:
            raise ConnectionLostError(f"the SSH connection broke ({retry.in_words(error)})") from error

    def hear(self) -> bytes:
        """Something of what it writes; empty: no more comes, since it or the connection has ended."""
        return self._channel.recv(READ_BYTES)

    def finish(self) -> None:
        """No more is said to it. From any thread."""
        with suppress(OSError, EOFError, paramiko.SSHException):
            self._channel.shutdown_write()

    def exit_code(self) -> int | None:
        """When no more comes. None: a signal ended it, or the connection did."""
        self._channel.status_event.wait(LAST_WORD_S)
        return int(self._channel.exit_status) if self._channel.exit_status >= 0 else None

    def last_words(self) -> str:
        """The last line of what it complained of; only when no more comes."""
        lines = self._channel.recv_stderr(READ_BYTES).decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


class _Stdin:
    def __init__(self, channel: paramiko.Channel) -> None:
        self._channel = channel

    def write(self, data: bytes, /) -> None:
        """However slowly the machine takes it: the channel's timeout is for reading, and what ends the command ends
        this too. Raises OSError, EOFError when the channel is closed."""
        begin = 0
        while begin < len(data):
            try:
                sent = self._channel.send(data[begin : begin + READ_BYTES])
            except TimeoutError:
                continue
            if not sent:
                raise EOFError
            begin += sent


def _feed(channel: paramiko.Channel, feed: Callable[[Stdin], None]) -> None:
    """A command that ends before it has read all is judged by its exit code, and so is one that was fed too little."""
    try:
        feed(_Stdin(channel))
    except (OSError, EOFError, paramiko.SSHException) as error:
        log.info("a command was not fed to the end: %s", error)
    finally:
        with suppress(OSError, EOFError, paramiko.SSHException):
            channel.shutdown_write()


# --- opening ----------------------------------------------------------------------------------------------------


def connect_patiently(
    reach: Reach,
    private_key: str,
    *,
    bastions: Bastions,
    patience_s: float,
    stop: threading.Event,
) -> Connection:
    """Try until the machine is ready. ``private_key``: OpenSSH PEM text; ``stop``: give up.

    Raises HostKeyError and BastionError at once; UnreachableError after ``patience_s`` or when stopped, with what was
    seen last.
    """
    deadline, pause_s = time.monotonic() + patience_s, FIRST_PAUSE_S
    while True:
        try:
            return connect(
                reach, private_key, bastions=bastions, within_s=max(SHORTEST_TRY_S, deadline - time.monotonic())
            )
        except (OSError, EOFError, paramiko.SSHException) as error:
            seen = error
            if not retry.may_pass(error):
                raise
        if stop.wait(min(pause_s, max(0.0, deadline - time.monotonic()))) or time.monotonic() >= deadline:
            raise UnreachableError(
                f"no SSH connection to {reach.user}@{reach.address}:{reach.port} within {patience_s:.0f} s: "
                f"{retry.in_words(seen)}",
                next_step="Is the address reachable from here (`aws.ssh_from`, a subnet with a route to an internet "
                "gateway, a bastion), and is the login user right?",
            ) from seen
        pause_s = min(LAST_PAUSE_S, pause_s * 1.5)


def connect(reach: Reach, private_key: str, *, bastions: Bastions, within_s: float = TRY_S) -> Connection:
    """One try. Raises HostKeyError, BastionError; OSError, EOFError and paramiko.SSHException, which may pass."""
    key = paramiko.Ed25519Key.from_private_key(io.StringIO(private_key))
    kind, wanted = reach.host_key.split()[:2]
    sock = _socket_to(reach, bastions)
    transport = None
    try:
        transport = paramiko.Transport(sock)
        transport.get_security_options().key_types = (kind,)
        transport.banner_timeout, transport.auth_timeout = min(BANNER_S, within_s), AUTHENTICATE_S
        transport.start_client(timeout=min(TRY_S, within_s))
        shown = transport.get_remote_server_key()
        if shown.get_base64() != wanted:
            raise HostKeyError(
                f"{reach.address} shows the host key {shown.fingerprint}, not the one that it was given",
                next_step=f"It is not our machine ({retry.MOVES}). Nothing was sent to it.",
            )
        transport.auth_publickey(reach.user, key)
        transport.set_keepalive(KEEPALIVE_S)
    except BaseException:
        if transport is not None:
            transport.close()
        sock.close()
        raise
    return Connection(transport)


def _socket_to(reach: Reach, bastions: Bastions) -> "socket.socket | paramiko.Channel":
    if reach.bastion is None:
        return sockets.connect(reach.address, reach.port)
    return cast(paramiko.Channel, bastions.through(reach.bastion, reach.address, reach.port))  # as good as one
