"""A cloud in memory that keeps the provider's contract, and can be told to have a bad day."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from bamboo_cli.errors import BambooError, CapacityError, CloudError, InstanceGoneError
from bamboo_cli.providers.base import EndReason, Instance, InstanceState, NodeConfig, Offer


def offer(zone: str = "a", spot: float = 0.3) -> Offer:
    return Offer(
        instance_type="t", zone=zone, spot_usd_per_hour=spot, on_demand_usd_per_hour=1.0, price_source="job file"
    )


@dataclass
class MemoryCloud:
    clock: Callable[[], float] = time.time
    market: tuple[Offer, ...] = (offer(),)
    capacity: int = 8
    name: str = "memory"
    poll_s = 0.5
    ends_within_s = 30.0
    unlisted_s = 0.0
    made: dict[str, Instance] = field(default_factory=dict)
    """By token."""
    configs: dict[str, NodeConfig] = field(default_factory=dict)
    """Of each instance, by its id."""
    num_creates: int = 0
    num_looks: int = 0
    trouble: BambooError | None = None
    """Raised by every call."""
    lose_answer: bool = False
    """The next create takes effect, and its caller never hears of it."""
    notices: list[tuple[str, float | None]] = field(default_factory=list)
    on_change: Callable[[], None] = lambda: None
    """Called, from whatever thread, when an instance has come or gone."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def offers(self) -> tuple[Offer, ...]:
        self._suffer()
        return self.market

    def create(self, offer: Offer, config: NodeConfig, token: str) -> Instance:
        self._suffer()
        with self._lock:
            self.num_creates += 1
            if token not in self.made:
                if len(self.alive()) >= self.capacity:
                    raise CapacityError(f"{offer.zone} is full")
                self._make(offer, config, token)
            if self.lose_answer:
                self.lose_answer = False
                raise CloudError("the connection broke")
            return self.made[token]

    def instances(self, cluster_id: str) -> tuple[Instance, ...]:
        self.num_looks += 1
        self._suffer()
        return tuple(instance for instance in self.made.values() if instance.cluster_id == cluster_id)

    def parts(self) -> "tuple[MemoryCloud, ...]":
        return (self,)

    def terminate(self, instance_ids: tuple[str, ...]) -> None:
        self._suffer()
        for instance_id in instance_ids:
            self._end(instance_id, EndReason.USER)

    def preempt(self, instance_id: str, *, notice_s: float | None) -> None:
        self._suffer()
        if not any(instance.instance_id == instance_id for instance in self.alive()):
            raise InstanceGoneError(f"{instance_id} is gone")
        self.notices.append((instance_id, notice_s))
        if notice_s is None:
            self._end(instance_id, EndReason.PREEMPTED)

    def left_behind(self, cluster_id: str) -> tuple[str, ...]:
        return tuple(instance.instance_id for instance in self.alive() if instance.cluster_id == cluster_id)

    def clean(self, cluster_id: str) -> None:
        self._suffer()

    def retire(self) -> bool:
        return not self.alive()

    # --- what only a test can do --------------------------------------------------------------------------------

    def alive(self) -> list[Instance]:
        return [instance for instance in self.made.values() if instance.state is not InstanceState.TERMINATED]

    def forget(self) -> None:
        """As if it had never listed anything."""
        self.made.clear()

    @contextmanager
    def out_of_order(self) -> Iterator[None]:
        self.trouble = CloudError("the cloud is out of order")
        try:
            yield
        finally:
            self.trouble = None

    def _make(self, offer: Offer, config: NodeConfig, token: str) -> None:
        instance = Instance(
            instance_id=f"i-{len(self.made) + 1}",
            token=token,
            node_id=config.node_id,
            cluster_id=config.cluster_id,
            instance_type=offer.instance_type,
            zone=offer.zone,
            state=InstanceState.RUNNING,
            address="127.0.0.1",
            launched_at=self.clock(),
        )
        self.made[token] = instance
        self.configs[instance.instance_id] = config
        self.on_change()

    def _end(self, instance_id: str, reason: EndReason) -> None:
        for token, instance in self.made.items():
            if instance.instance_id == instance_id and instance.state is not InstanceState.TERMINATED:
                self.made[token] = replace(
                    instance, state=InstanceState.TERMINATED, ended_at=self.clock(), end_reason=reason
                )
        self.on_change()

    def _suffer(self) -> None:
        if self.trouble is not None:
            raise self.trouble
