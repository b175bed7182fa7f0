"""What stands behind an instance: the seam between EC2's double and the machines that it boots."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from tests.aws.firewall import Gate
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


class Stopped(StrEnum):
    SHUT_DOWN = "shut down"
    """By itself, in good order."""
    BROKE = "broke"


class Machine(Protocol):
    boot: Boot

    def kill(self) -> None:
        """At once: nothing of it gets a chance to say goodbye. Killing what is gone is not an error."""
        ...

    def stopped(self) -> Stopped | None:
        """None: it runs."""
        ...


class Machines(Protocol):
    def boot(self, boot: Boot) -> Machine: ...

    def admit(self, region: str, gates: Sequence[Gate]) -> None:
        """Whom the region's machines let in, all of them."""
        ...

    def close(self) -> None:
        """Kill all."""
        ...
