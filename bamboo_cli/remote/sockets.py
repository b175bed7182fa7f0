"""TCP sockets on which a dead peer is noticed: by the system, within seconds, and not by SSH.

A keepalive of SSH is sent without waiting for its answer; what notices that nothing comes back is TCP, if it is told
how long to wait for an acknowledgement (RFC 5482). Where the system has no such option (macOS), probes remain.
"""

import socket

CONNECT_S = 10.0
DEAD_AFTER_S = 8.0
"""Of bytes that are not acknowledged; a link that only stutters is not torn down."""
PROBE_S = 2


def connect(address: str, port: int) -> socket.socket:
    """Raises OSError (a refusal, a timeout, a name that is not known)."""
    sock = socket.create_connection((address, port), timeout=CONNECT_S)
    sock.settimeout(None)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_USER_TIMEOUT", int(DEAD_AFTER_S * 1000)),
        ("TCP_KEEPIDLE", PROBE_S),
        ("TCP_KEEPINTVL", PROBE_S),
        ("TCP_KEEPCNT", int(DEAD_AFTER_S / PROBE_S)),
    ):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return sock
