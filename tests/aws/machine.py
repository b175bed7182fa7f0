"""What stands behind an instance: the seam between EC2's double and the machines that it boots."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from tests.aws.metadata import Metadata


@dataclass(frozen=True, slots=True, kw_only=True)
class Boot:
    """What a machine is told when it starts."""

    instance_id: str
    instance_type: str
    region: str
    zone: str
    private_address: str
    public_address: str
    """Empty: it has none."""
    public_key: str
    """Of the key pair, in OpenSSH's form; empty: none."""
    user_data: str
    metadata: Metadata


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """Whom the machine's security groups let in."""

    public: bool
    """Us, who come to port 22 of its public address."""
    private: bool
    """Us, at its private address."""
    peers: bool
    """Other machines, at any port of its private address."""


class Stopped(StrEnum):
    SHUT_DOWN = "shut down"
    """By itself, in good order."""
    BROKE = "broke"


class Machine(Protocol):
    boot: Boot

    def kill(self) -> None:
        """At once: nothing of it gets a chance to say goodbye. Killing what is gone is not an error."""
        ...

    def admit(self, admitted: Admitted) -> None: ...

    def stopped(self) -> Stopped | None:
        """None: it runs."""
        ...


class Machines(Protocol):
    callers: tuple[str, str]
    """Our own addresses, as a machine sees us at its public and at its private address."""

    def boot(self, boot: Boot) -> Machine: ...

    def close(self) -> None:
        """Kill all."""
        ...
