"""What the local cloud knows of its instances, and what is due when: values and functions of them, no I/O."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Self

from bamboo_cli.providers.base import EndReason, Instance, InstanceState, NodeConfig
from bamboo_cli.providers.local_cloud.trace import Change, Replay

STATE_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a client asks for. The cloud has no catalogue of its own: the job file says what it is like."""

    token: str
    config: NodeConfig
    instance_type: str
    zone: str
    capacity: int | None
    """Live instances that the zone may hold, those of other clusters included; None: any number."""
    boot_delay_s: float
    preemptions_per_hour: float
    preemption_seed: int
    notice_s: float | None
    """Ahead of a preemption by probability; None: it comes without a notice."""
    notice_poll_s: float
    num_accelerators: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Rented:
    """One instance. Times in seconds since the epoch."""

    instance_id: str
    request: Request
    index: int
    """How many instances its cluster had been given before it."""
    address: str
    metadata_port: int
    launched_at: float
    state: InstanceState = InstanceState.PENDING
    pid: int | None = None
    """Of the agent: the leader of the instance's session and process group."""
    pid_created_at: float | None = None
    preempt_at: float | None = None
    """When chance takes it; drawn at boot."""
    noticed_at: float | None = None
    kill_at: float | None = None
    """Set once by a notice or a termination, and only ever moved forward in time to an earlier moment."""
    ended_at: float | None = None
    end_reason: EndReason = EndReason.NONE

    @property
    def live(self) -> bool:
        return self.state is not InstanceState.TERMINATED

    def public(self) -> Instance:
        return Instance(
            instance_id=self.instance_id,
            token=self.request.token,
            node_id=self.request.config.node_id,
            cluster_id=self.request.config.cluster_id,
            instance_type=self.request.instance_type,
            zone=self.request.zone,
            state=self.state,
            address=self.address,
            launched_at=self.launched_at,
            ended_at=self.ended_at,
            end_reason=self.end_reason,
        )

    def booted(self, *, pid: int, pid_created_at: float, now: float) -> Self:
        lifetime = draw_lifetime_s(self.request, self.index)
        return replace(
            self,
            state=InstanceState.RUNNING,
            pid=pid,
            pid_created_at=pid_created_at,
            preempt_at=None if lifetime is None else now + lifetime,
        )

    def noticed(self, *, notice_s: float | None, now: float) -> Self:
        """Preempted: with a notice that is visible from now on, or (None) at once."""
        ending = self._ending(kill_at=now + (notice_s or 0.0), reason=EndReason.PREEMPTED)
        return replace(ending, noticed_at=ending.noticed_at or now) if notice_s is not None else ending

    def unwanted(self, now: float) -> Self:
        """Terminated by its user."""
        return self._ending(kill_at=now, reason=EndReason.USER)

    def _ending(self, *, kill_at: float, reason: EndReason) -> Self:
        """The first reason stands; the earlier of two deadlines holds."""
        return replace(
            self,
            state=InstanceState.ENDING,
            kill_at=kill_at if self.kill_at is None else min(kill_at, self.kill_at),
            end_reason=reason if self.end_reason is EndReason.NONE else self.end_reason,
        )

    def ended(self, now: float) -> Self:
        reason = EndReason.FAILED if self.end_reason is EndReason.NONE else self.end_reason
        return replace(self, state=InstanceState.TERMINATED, ended_at=now, end_reason=reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudState:
    """The state file."""

    version: int = STATE_VERSION
    created: dict[str, int] = field(default_factory=dict)
    """Instances ever given to each cluster."""
    rented: tuple[Rented, ...] = ()
    replays: dict[str, Replay] = field(default_factory=dict)
    """By cluster."""


class Due(StrEnum):
    NOTHING = "nothing"
    BOOT = "boot"
    PREEMPT = "preempt"
    END = "end"


def due(rented: Rented, *, alive: bool, now: float) -> Due:
    """What has to be done with the instance. ``alive``: its agent's process is there (if it has one)."""
    if not rented.live:
        return Due.NOTHING
    if rented.kill_at is not None and rented.kill_at <= now:
        return Due.END
    if rented.pid is not None and not alive:
        return Due.END
    if rented.state is InstanceState.PENDING and rented.launched_at + rented.request.boot_delay_s <= now:
        return Due.BOOT
    if rented.state is InstanceState.RUNNING and rented.preempt_at is not None and rented.preempt_at <= now:
        return Due.PREEMPT
    return Due.NOTHING


def take(replay: Replay, change: Change, staying: Sequence[Rented], *, now: float) -> tuple[Rented, ...]:
    """Those of ``staying`` (in the order of their creation) that the change preempts, as they are then."""
    count = max(change.num_taken, len(staying) - change.capacity)
    victims = replay.victims({rented.instance_id: rented.request.zone for rented in staying}, count)
    return tuple(r.noticed(notice_s=r.request.notice_s, now=now) for r in staying if r.instance_id in victims)


def draw_lifetime_s(request: Request, index: int) -> float | None:
    """Seconds from boot to preemption: exponential, the same for the same seed and index. None: never taken."""
    if request.preemptions_per_hour <= 0.0:
        return None
    return random.Random(f"{request.preemption_seed}/{index}").expovariate(request.preemptions_per_hour / 3600.0)
