"""Addresses of instances on the loopback."""

import socket
from collections.abc import Collection


def loopback_address(number: int) -> str:
    """127.0.0.2, 127.0.0.3, …, 127.0.0.254, 127.0.1.1, … for 0, 1, …"""
    block, host = divmod(number + 1, 254)
    return f"127.0.{block}.{host + 1}"


def first_free(taken: Collection[str]) -> str:
    return next(a for a in map(loopback_address, range(len(taken) + 1)) if a not in taken)


def has_aliases() -> bool:
    """Linux answers on all of 127.0.0.0/8; macOS on 127.0.0.1 only, where instances differ by their ports."""
    with socket.socket() as probe:
        try:
            probe.bind((loopback_address(0), 0))
        except OSError:
            return False
    return True
