"""The agent's way to the coordinator: a port on the machine's loopback that leads here, inside the SSH connection."""

import logging
import socket
import threading
from contextlib import suppress

import paramiko

from bamboo_cli.errors import ConnectionLostError, StepError
from bamboo_cli.remote import retry
from bamboo_cli.remote.connection import Connection

READ_BYTES = 1 << 16
MAX_STREAMS = 16
"""At a time, from one machine: it has one agent."""

log = logging.getLogger(__name__)


class Forward:
    """Ends with its connection."""

    def __init__(self, connection: Connection, target: tuple[str, int]) -> None:
        """``target``: the coordinator's address for agents. Raises StepError, ConnectionLostError."""
        self._target = target
        self._room = threading.BoundedSemaphore(MAX_STREAMS)
        try:
            # Port 0: a port of our choice may be taken, by the session of a connection that was cut, say.
            self.port = connection.transport.request_port_forward("127.0.0.1", 0, self._opened)
        except (OSError, EOFError) as error:
            raise ConnectionLostError(f"the SSH connection broke ({retry.in_words(error)})") from error
        except paramiko.SSHException as error:
            if connection.is_open:
                raise StepError(
                    f"the machine allows no forwarding ({error})",
                    step="link",
                    next_step="Its sshd needs AllowTcpForwarding yes, for the agent's way to the coordinator.",
                ) from error
            raise ConnectionLostError(f"the SSH connection broke ({error})") from error

    def _opened(self, channel: paramiko.Channel, origin: object, server: object) -> None:
        """In the thread that reads the whole connection, so nothing may be waited for here."""
        if not self._room.acquire(blocking=False):
            threading.Thread(target=_close, args=(channel,), daemon=True).start()
            return
        threading.Thread(target=self._carry, args=(channel,), name="forward", daemon=True).start()

    def _carry(self, channel: paramiko.Channel) -> None:
        """One stream, until either side ends it; then both are."""
        try:
            with channel, socket.create_connection(self._target, timeout=10) as sock:
                sock.settimeout(None)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                back = threading.Thread(target=_pump, args=(sock, channel), name="forward-back", daemon=True)
                back.start()
                _pump(channel, sock)
                back.join()
        except OSError as error:
            log.warning("the coordinator's own port %s: %s", self._target, error)
        except (EOFError, paramiko.SSHException):
            log.debug("the connection ended before a stream in it was closed")
        finally:
            self._room.release()


def _close(channel: paramiko.Channel) -> None:
    with suppress(OSError, EOFError, paramiko.SSHException):
        channel.close()


def _pump(source: "socket.socket | paramiko.Channel", sink: "socket.socket | paramiko.Channel") -> None:
    try:
        while piece := source.recv(READ_BYTES):
            sink.sendall(piece)
    except (OSError, EOFError, paramiko.SSHException):
        pass
    for end in (source, sink):
        with suppress(OSError, EOFError, paramiko.SSHException):
            end.shutdown(socket.SHUT_RDWR)
