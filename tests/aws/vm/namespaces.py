"""Network namespaces: a bridge in ours, a wire to each machine's, and sockets that listen in a machine's.

https://man7.org/linux/man-pages/man7/network_namespaces.7.html
"""

import contextlib
import ctypes
import os
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.aws import metadata

BRIDGE = "cloud0"
PUBLIC_GATEWAY = "198.18.0.1"
"""What a machine sees when the tests connect to its public address."""
PRIVATE_GATEWAY = "172.31.0.1"
PUBLIC_NETWORK = "198.18.0.0/16"
PRIVATE_NETWORK = "172.31.0.0/16"
CLONE_NEWNET = 0x40000000
METADATA_PORT = 80

_libc = ctypes.CDLL(None, use_errno=True)


def make_bridge() -> None:
    _ip(
        f"link add {BRIDGE} type bridge",
        f"addr add {PUBLIC_GATEWAY}/16 dev {BRIDGE}",
        f"addr add {PRIVATE_GATEWAY}/16 dev {BRIDGE}",
        f"link set {BRIDGE} up",
    )


def remove_bridge() -> None:
    _ip(f"link del {BRIDGE}")


def make(name: str, wire: str, addresses: Sequence[str]) -> None:
    """A namespace ``name`` with the metadata address and ``addresses``, at the end of ``wire``. It knows no way out."""
    _ip(
        f"netns add {name}",
        f"link add {wire} type veth peer name eth0 netns {name}",
        f"link set {wire} master {BRIDGE}",
        f"link set {wire} up",
    )
    _ip(
        "link set lo up",
        f"addr add {metadata.ADDRESS}/32 dev lo",
        *(f"addr add {address}/32 dev eth0" for address in addresses),
        "link set eth0 up",
        *(f"route add {network} dev eth0" for network in (PUBLIC_NETWORK, PRIVATE_NETWORK)),
        inside=name,
    )


def filter_bridge(rules: str) -> None:
    """``rules``: for nftables."""
    try:
        subprocess.run(["nft", "-f", "-"], input=rules, text=True, check=True, capture_output=True)
    except subprocess.CalledProcessError as error:
        error.add_note(error.stderr)
        raise


def remove(name: str) -> None:
    """And its wire with it."""
    subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def cut(wire: str) -> None:
    """From now on nothing passes, and nobody is told: the end of a machine that was simply taken."""
    _ip(f"link set {wire} down")


def mend(wire: str) -> None:
    _ip(f"link set {wire} up")


def listen_in(name: str, address: str, port: int) -> socket.socket:
    with _entered(name):
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((address, port))
        listening.listen(64)
    return listening


@contextlib.contextmanager
def _entered(name: str) -> Iterator[None]:
    """For this thread only. A socket stays where it was made."""
    with Path(f"/proc/self/task/{threading.get_native_id()}/ns/net").open("rb") as ours:
        with Path(f"/run/netns/{name}").open("rb") as theirs:
            _enter(theirs.fileno())
        try:
            yield
        finally:
            _enter(ours.fileno())


def _enter(namespace: int) -> None:
    if _libc.setns(namespace, CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _ip(*commands: str, inside: str | None = None) -> None:
    where = ["-n", inside] if inside else []
    try:
        subprocess.run(
            ["ip", *where, "-batch", "-"], input="\n".join(commands), text=True, check=True, capture_output=True
        )
    except subprocess.CalledProcessError as error:
        error.add_note(error.stderr)
        raise
