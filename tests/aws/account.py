"""The account and the cloud around it: whatever a test may set, and what EC2 remembers that moto does not."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any

import boto3

from tests.aws import market
from tests.aws.machine import Machine, Machines
from tests.aws.market import PricePoint

ACCOUNT_ID = "123456789012"
REGIONS = frozenset(boto3.Session().get_available_regions("ec2"))
"""Of the partition; moto has those of all."""
DLAMI = "ami-0d1a000000000002"
UBUNTU = "ami-0c2b000000000001"
IMAGE_PARAMETERS = {
    f"/aws/service/deeplearning/ami/x86_64/{name}/latest/ami-id": DLAMI
    for name in ("base-oss-nvidia-driver-gpu-ubuntu-24.04", "base-oss-nvidia-driver-ubuntu-24.04")
} | {
    "/aws/service/deeplearning/ami/arm64/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id": "ami-0d1a000000000003",
    "/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id": UBUNTU,
}


class Credentials(StrEnum):
    GOOD = "good"
    EXPIRED = "expired"
    WRONG = "wrong"


class End(StrEnum):
    """Why an instance ended; the value is EC2's ``StateReason.Code``."""

    USER = "Client.UserInitiatedShutdown"
    SHUTDOWN = "Client.InstanceInitiatedShutdown"
    INTERRUPTED = "Server.SpotInstanceTermination"
    BROKEN = "Server.InternalError"


@dataclass(slots=True, kw_only=True)
class Life:
    """Of one instance, from RunInstances to when EC2 forgets it. Times are seconds since the epoch."""

    instance_id: str
    region: str
    zone: str
    instance_type: str
    is_spot: bool
    spot_request_id: str | None
    visible_at: float
    running_at: float
    interrupted_at: float | None = None
    """When an announced interruption takes effect."""
    gone_at: float | None = None
    """When ``shutting-down`` becomes ``terminated``."""
    ended_at: float | None = None
    machine: Machine | None = None


@dataclass(slots=True, kw_only=True)
class Account:
    machines: Machines | None = None
    """What boots behind RunInstances; None: instances are entries in a list."""
    ahead_s: float = 0.0
    """How much later it is for EC2 than for this machine."""

    # --- what a test may set ---
    allowed: tuple[str, ...] = ("*",)
    """Actions that the caller may call, as in a policy: ``ec2:Describe*``."""
    credentials: Credentials = Credentials.GOOD
    not_enabled: tuple[str, ...] = ()
    """Regions that the account has not opted in to."""
    capacity: dict[tuple[str, str], int] = field(default_factory=dict)
    """Instances that may live, by zone and type (``*``: of any type); no entry: any number."""
    quotas: dict[tuple[str, str], float] = field(default_factory=dict)
    """vCPUs by region and quota code; no entry: 128."""
    spot_prices: Callable[[str, str, float], list[PricePoint]] = field(
        default=lambda kind, zone, now: list(market.spot_history(kind, zone, now=now))
    )
    """By type, zone and time; newest first."""
    placement_scores: dict[str, int] = field(default_factory=dict)
    """By zone; no entry: 7."""
    image_parameters: dict[str, str] = field(default_factory=lambda: dict(IMAGE_PARAMETERS))
    instance_profiles: tuple[str, ...] = ("bamboo-node",)
    launch_burst: int = 5
    launches_per_s: float = 2.0
    """RunInstances that a region takes at once, and then each second: RequestLimitExceeded for all above."""
    pending_s: float = 0.0
    visible_after_s: float = 0.0
    """A new instance is unknown to everything but RunInstances for so long."""
    shutting_down_s: float = 0.0
    listed_after_end_s: float = 3600.0

    # --- what EC2 remembers ---
    lives: dict[str, Life] = field(default_factory=dict)
    reservations: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    """By region and client token: the arguments and the id of the reservation."""
    spot_requests: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    """By region and id, in EC2's own shape."""
    experiments: dict[str, list[str]] = field(default_factory=dict)
    """Templates of the Fault Injection Service: instances to interrupt, by id."""
    launch_tokens: dict[str, tuple[float, float]] = field(default_factory=dict)
    """By region: how many there were, and when."""
    num_public_addresses: int = 0
    unsupported: list[str] = field(default_factory=list)
    """What was asked and the double does not know; a test that comes here has learned nothing."""

    def now(self) -> float:
        return time.time() + self.ahead_s

    def new_public_address(self) -> str:
        """Of 198.18.0.0/16, which is nobody's: it is kept for tests of networks."""
        self.num_public_addresses += 1
        return f"198.18.{1 + self.num_public_addresses // 250}.{1 + self.num_public_addresses % 250}"

    def takes_launch(self, region: str) -> bool:
        """One token of the region's bucket is used up, if there is one."""
        now = self.now()
        left, at = self.launch_tokens.get(region, (float(self.launch_burst), now))
        left = min(float(self.launch_burst), left + (now - at) * self.launches_per_s)
        self.launch_tokens[region] = (left - 1.0 if left >= 1.0 else left, now)
        return left >= 1.0

    def may(self, permission: str) -> bool:
        return any(fnmatchcase(permission.lower(), pattern.lower()) for pattern in self.allowed)

    def quota(self, region: str, code: str) -> float:
        return self.quotas.get((region, code), 128.0)

    def room(self, zone: str, instance_type: str) -> int:
        """Instances of the type that the zone still takes."""
        alive = [life for life in self.lives.values() if life.zone == zone and life.ended_at is None]
        of_type = sum(life.instance_type == instance_type for life in alive)
        limits = [
            self.capacity[key] - count
            for key, count in (((zone, instance_type), of_type), ((zone, "*"), len(alive)))
            if key in self.capacity
        ]
        return max(0, min(limits, default=10**6))

    def vcpus_free(self, region: str, instance_type: str, *, is_spot: bool) -> float:
        code = market.quota_code(instance_type, is_spot=is_spot)
        used = sum(
            market.num_vcpus(life.instance_type)
            for life in self.lives.values()
            if life.region == region
            and life.ended_at is None
            and market.quota_code(life.instance_type, is_spot=life.is_spot) == code
        )
        return self.quota(region, code) - used
