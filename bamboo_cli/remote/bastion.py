"""The user's own machine between us and the instances: one connection for all of them, made anew when it breaks."""

import threading

import paramiko

from bamboo_cli.remote import sockets

DEFAULT_PORT = 22
OPEN_S = 15.0


class Bastions:
    """Any thread may ask. Its host key must be in the user's ``known_hosts``; the user's keys or agent open it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._clients: dict[str, paramiko.SSHClient] = {}

    def through(self, bastion: str, address: str, port: int) -> paramiko.Channel:
        """A stream to ``address:port`` as seen from there. Raises OSError, EOFError, paramiko.SSHException."""
        transport = self._client(bastion).get_transport()
        if transport is None:
            raise EOFError(f"the connection to the bastion {bastion} is gone")
        return transport.open_channel("direct-tcpip", (address, port), ("127.0.0.1", 0), timeout=OPEN_S)

    def close(self) -> None:
        with self._lock:
            for client in self._clients.values():
                client.close()
            self._clients.clear()

    def _client(self, bastion: str) -> paramiko.SSHClient:
        """One at a time: a bastion refuses those who knock all at once (MaxStartups)."""
        with self._lock:
            client = self._clients.get(bastion)
            transport = client.get_transport() if client is not None else None
            if client is None or transport is None or not transport.is_active():
                client = self._clients[bastion] = _open(bastion)
            return client


def parse(bastion: str) -> tuple[str | None, str, int]:
    """User, host and port of ``user@host:port``, of which user and port may be missing. Raises ValueError."""
    user, at, place = bastion.rpartition("@")
    host, colon, port = place.rpartition(":") if not place.endswith("]") else (place, "", "")
    if not colon:
        host, port = place, str(DEFAULT_PORT)
    if not host or (at and not user):
        raise ValueError(f"{bastion!r} is not user@host or user@host:port")
    return user or None, host.strip("[]"), int(port)


def _open(bastion: str) -> paramiko.SSHClient:
    user, host, port = parse(bastion)
    client = paramiko.SSHClient()
    client.load_system_host_keys()
    client.set_missing_host_key_policy(paramiko.RejectPolicy())
    sock = sockets.connect(host, port)
    try:
        client.connect(host, port, username=user, sock=sock, banner_timeout=OPEN_S, auth_timeout=OPEN_S)
    except BaseException:
        sock.close()
        raise
    return client
