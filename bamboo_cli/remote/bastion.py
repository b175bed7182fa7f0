"""The user's own machine between us and the instances: one connection for all of them, made anew when it breaks.

That it is down says nothing of the machines behind it. So one thread tries to get through again, and everybody else
is told at once that it is down, instead of knocking in turn.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import paramiko
from paramiko.hostkeys import InvalidHostKey

from bamboo_cli.errors import BastionError, StepError
from bamboo_cli.remote import retry, sockets
from bamboo_cli.remote.settings import BASTION_STEP

DEFAULT_PORT = 22
OPEN_S, LOGIN_S = 15.0, 15.0
PROBE_S = 10.0
FIRST_PAUSE_S, LAST_PAUSE_S = 0.5, 5.0
PROHIBITED = 1
"""SSH_OPEN_ADMINISTRATIVELY_PROHIBITED (RFC 4254, section 5.1)."""


class Stream:
    """A channel in place of a socket. To close it is to say so to the bastion; where that is gone, it is no error:
    it would end whatever thread closes a connection, and with it the keeping of a node."""

    def __init__(self, channel: paramiko.Channel) -> None:
        self.channel = channel

    def close(self) -> None:
        with suppress(OSError, EOFError, paramiko.SSHException):
            self.channel.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.channel, name)


class Bastions:
    """Any thread may ask. Its host key must be in the user's ``known_hosts``; the user's keys or agent open it."""

    def __init__(
        self,
        *,
        lost: Callable[[str, str], None] = lambda bastion, detail: None,
        found: Callable[[str], None] = lambda bastion: None,
    ) -> None:
        """``lost``: a bastion cannot be reached, and why; ``found``: it can be again. Called by any thread."""
        self._tell_lost, self._tell_found = lost, found
        self._lock = threading.Lock()
        self._clients: dict[str, paramiko.SSHClient] = {}
        self._down: dict[str, BastionError] = {}
        self._closed = threading.Event()

    def through(self, bastion: str, address: str, port: int) -> Stream:
        """A stream to ``address:port`` as seen from there.

        Raises BastionError where the bastion is down, StepError where it forbids it; OSError, EOFError,
        paramiko.SSHException where the next try may go well.
        """
        client = self._client(bastion)
        transport = client.get_transport()
        try:
            if transport is None:
                raise EOFError
            return Stream(transport.open_channel("direct-tcpip", (address, port), ("127.0.0.1", 0), timeout=OPEN_S))
        except paramiko.ChannelException as error:
            if error.code == PROHIBITED:
                raise StepError(
                    f"the bastion {bastion} lets us not through to {address}:{port}",
                    step=BASTION_STEP,
                    next_step="Its sshd needs AllowTcpForwarding yes, and no PermitOpen that leaves the nodes out.",
                ) from error
            raise
        except (OSError, EOFError, paramiko.SSHException):
            if not self.is_well(bastion):
                self._client(bastion)
            raise

    def is_down(self, bastion: str) -> bool:
        """And being tried."""
        return bastion in self._down

    def is_well(self, bastion: str) -> bool:
        """Whether it still answers on its connection, which is given up if not. It takes ``PROBE_S`` at most. That it
        allows no session (``MaxSessions 0``) is an answer."""
        client = self._clients.get(bastion)
        transport = client.get_transport() if client is not None else None
        try:
            if transport is None:
                raise EOFError
            transport.open_session(timeout=PROBE_S).close()
        except paramiko.ChannelException:
            return True
        except (OSError, EOFError, paramiko.SSHException):
            with self._lock:
                if client is not None and self._clients.get(bastion) is client:
                    del self._clients[bastion]
                    _in_thread(client.close)
            return False
        return True

    def close(self) -> None:
        self._closed.set()
        with self._lock:
            for client in self._clients.values():
                client.close()
            self._clients.clear()

    def _client(self, bastion: str) -> paramiko.SSHClient:
        """One at a time: a bastion refuses those who knock all at once (MaxStartups). Raises BastionError."""
        with self._lock:
            client = self._clients.get(bastion)
            transport = client.get_transport() if client is not None else None
            if client is not None and transport is not None and transport.is_active():
                return client
            if bastion in self._down:
                raise _again(self._down[bastion])
            try:
                made = self._clients[bastion] = connect(bastion)
            except BastionError as error:
                self._clients.pop(bastion, None)
                self._down[bastion] = error
                self._tell_lost(bastion, error.detail)
                _in_thread(lambda: self._try_again(bastion))
                raise
            return made

    def _try_again(self, bastion: str) -> None:
        """Until it lets us in: also where nobody is left who waits for it, since nothing is rented before."""
        pause_s = FIRST_PAUSE_S
        while not self._closed.wait(pause_s):
            pause_s = min(LAST_PAUSE_S, pause_s * 2)
            try:
                client = connect(bastion)
            except BastionError as error:
                self._down[bastion] = error
                continue
            with self._lock:
                if self._closed.is_set():
                    client.close()
                    return
                self._clients[bastion] = client
                del self._down[bastion]
                self._tell_found(bastion)  # before anybody can tell that it is lost again
            return


def parse(bastion: str) -> tuple[str | None, str, int]:
    """User, host and port of ``user@host:port``, of which user and port may be missing. Raises ValueError."""
    user, at, place = bastion.rpartition("@")
    host, colon, port = place.rpartition(":") if not place.endswith("]") else (place, "", "")
    if not colon:
        host, port = place, str(DEFAULT_PORT)
    if not host or (at and not user):
        raise ValueError(f"{bastion!r} is not user@host or user@host:port")
    return user or None, host.strip("[]"), int(port)


def connect(bastion: str) -> paramiko.SSHClient:
    """Raises BastionError."""
    user, host, port = parse(bastion)
    client = paramiko.SSHClient()
    try:
        client.load_system_host_keys()
        client.set_missing_host_key_policy(paramiko.RejectPolicy())
        sock = sockets.connect(host, port)
        try:
            client.connect(host, port, username=user, sock=sock, banner_timeout=LOGIN_S, auth_timeout=LOGIN_S)
        except BaseException:
            with suppress(OSError, EOFError, paramiko.SSHException):
                client.close()
            sock.close()
            raise
    except (OSError, EOFError, paramiko.SSHException, InvalidHostKey, UnicodeError) as error:
        detail = _in_words(error)
        by_hand = f"ssh{'' if port == DEFAULT_PORT else f' -p {port}'} {f'{user}@' if user else ''}{host}"
        raise BastionError(
            f"the bastion {bastion} cannot be reached: {detail}",
            detail=detail,
            next_step=f"`{by_hand}` from this machine has to work without a question: the host in known_hosts, a key "
            "of yours or your agent's let in.",
        ) from error
    return client


def _in_words(error: Exception) -> str:
    match error:
        case paramiko.BadHostKeyException():
            return "it shows another host key than known_hosts has"
        case paramiko.AuthenticationException():
            return "it lets none of our keys in"
        case paramiko.PasswordRequiredException():
            return "the key is locked by a passphrase"
        case InvalidHostKey():
            return f"known_hosts has a line that cannot be read: {error.line[:60]!r}"
        case UnicodeDecodeError():
            return f"known_hosts has a line that cannot be read: it is no text ({error.reason})"
        case UnicodeError():
            return f"its name is none ({error})"
    if "not found in known_hosts" in str(error):
        return "its host key is not in known_hosts"
    return retry.in_words(error)


def _again(error: BastionError) -> BastionError:
    """An exception is raised by one thread only."""
    return BastionError(error.message, detail=error.detail, next_step=error.next_step)


def _in_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="bastion", daemon=True).start()
