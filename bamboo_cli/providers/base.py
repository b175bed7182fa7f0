"""The contract of a cloud. Every provider has these functions; after one you know all.

All calls block (the coordinator runs them in a thread), have a timeout, and raise the errors of ``bamboo_cli.errors``.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

ON_DEMAND = ", on demand: "
"""In a ``price_source``: what follows is about the price on demand alone, which is not as sure as that of spot."""


class InstanceState(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    ENDING = "ending"
    """Under notice, or being terminated."""
    TERMINATED = "terminated"


class EndReason(StrEnum):
    NONE = ""
    USER = "user"
    PREEMPTED = "preempted"
    FAILED = "failed"
    """It ended by itself (its processes died)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What the cloud would sell now."""

    instance_type: str
    zone: str
    spot_usd_per_hour: float
    on_demand_usd_per_hour: float
    price_source: str
    """``live`` or ``job file``; behind ``ON_DEMAND`` what else is to be known of the price on demand."""
    is_spot: bool = True
    """False: bought at the on-demand price, and not taken away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """User data: what the agent needs to find its coordinator."""

    cluster_id: str
    node_id: str
    coordinator_address: str
    coordinator_port: int
    secret: str
    beat_s: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """How an instance is prepared over SSH."""

    address: str
    """Where SSH connects: the public address, or the private one through ``bastion``."""
    port: int = 22
    user: str = "ubuntu"
    host_key: str
    """The only one that is accepted, as an OpenSSH public line: ``ssh-ed25519 AAAA...``."""
    bastion: str | None = None
    """``user@host`` or ``user@host:port`` to go through; None: directly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    instance_id: str
    token: str
    """The idempotency token of the request that created it."""
    node_id: str
    cluster_id: str
    instance_type: str
    zone: str
    state: InstanceState
    address: str
    """Where its workers are reached by those of other instances."""
    launched_at: float
    """Seconds since the epoch; the clock of the bill starts here."""
    ended_at: float | None = None
    end_reason: EndReason = EndReason.NONE
    reach: Reach | None = None
    """Once it runs and has an address. None where the cloud starts the agent itself."""
    is_spot: bool = True


class Provider(Protocol):
    name: str
    poll_s: float
    """Between two looks at the cloud."""
    ends_within_s: float
    """How long what was terminated may still be there."""
    unlisted_s: float
    """How long what was rented may be missing in the list."""

    def offers(self) -> tuple[Offer, ...]:
        """Raises CloudError."""
        ...

    def create(self, offer: Offer, config: NodeConfig, token: str) -> Instance:
        """Rent one instance and start its agent. The same token gives the same instance, however often it is sent.

        Raises CapacityError, QuotaError, CredentialsError, CloudError.
        """
        ...

    def instances(self, cluster_id: str) -> tuple[Instance, ...]:
        """All instances that carry the cluster's tag, ended ones included while the cloud still lists them."""
        ...

    def parts(self) -> "tuple[Provider, ...]":
        """One for each place (region) that may be in trouble of its own: for who has to end what is in the others."""
        ...

    def terminate(self, instance_ids: tuple[str, ...]) -> None:
        """Terminating what is gone is not an error. Returns when the cloud has accepted it."""
        ...

    def preempt(self, instance_id: str, *, notice_s: float | None) -> None:
        """Take the instance as the cloud would, after a notice of ``notice_s`` seconds or (None) at once.

        Raises InstanceGoneError; CloudError where the cloud has no such thing.
        """
        ...

    def left_behind(self, cluster_id: str) -> tuple[str, ...]:
        """After ``terminate`` and ``clean``: everything of the cluster that still exists, or whose end could not be
        proven, one line each. Empty: proven gone."""
        ...

    def clean(self, cluster_id: str) -> None:
        """After all instances are gone: end what was made for them (groups, keys, requests). What is gone is no error.

        Raises CloudError with what could not be ended.
        """
        ...

    def retire(self) -> bool:
        """End what the provider itself keeps running or stored on this machine, unless something rented needs it.

        True: nothing of it runs. Not an error where it runs nothing.
        """
        ...
