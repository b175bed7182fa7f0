"""The local provider: a cloud of processes on this machine. See docs/local-cloud.md."""

import os
from dataclasses import dataclass
from pathlib import Path

from bamboo_cli.errors import CloudError
from bamboo_cli.providers.base import Instance, InstanceState, NodeConfig, Offer
from bamboo_cli.providers.local_cloud import calls, processes
from bamboo_cli.providers.local_cloud.client import CloudClient
from bamboo_cli.providers.local_cloud.model import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalZone:
    name: str
    spot_usd_per_hour: float
    on_demand_usd_per_hour: float
    capacity: int | None = None
    """Live instances that the zone holds; None: any number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalConfig:
    """What the cloud is like; the job's ``local`` section."""

    zones: tuple[LocalZone, ...]
    instance_type: str = "local"
    boot_delay_s: float = 0.5
    preemptions_per_hour: float = 0.0
    """Expected per instance; the moments follow from ``preemption_seed`` and the order of creation."""
    preemption_seed: int = 0
    notice_s: float | None = 120.0
    """Ahead of a preemption by probability; None: without notice."""
    notice_poll_s: float = 1.0
    """How often an agent asks for a notice."""


class LocalProvider:
    name = "local"

    def __init__(self, directory: Path, config: LocalConfig, *, idle_s: float = 30.0) -> None:
        """``directory``: the cloud's own, for all clusters. ``idle_s``: how long it outlives its last instance."""
        self._directory = directory.absolute()
        self._config = config
        self._client = CloudClient(self._directory, idle_s=idle_s)

    def offers(self) -> tuple[Offer, ...]:
        return tuple(
            Offer(
                instance_type=self._config.instance_type,
                zone=zone.name,
                spot_usd_per_hour=zone.spot_usd_per_hour,
                on_demand_usd_per_hour=zone.on_demand_usd_per_hour,
                price_source="job file",
            )
            for zone in self._config.zones
        )

    def create(self, offer: Offer, config: NodeConfig, token: str) -> Instance:
        zone = next((zone for zone in self._config.zones if zone.name == offer.zone), None)
        if zone is None:
            raise CloudError(
                f"the local cloud has no zone {offer.zone}",
                next_step=f"Its zones are {', '.join(zone.name for zone in self._config.zones)}.",
            )
        request = Request(
            token=token,
            config=config,
            instance_type=offer.instance_type,
            zone=zone.name,
            capacity=zone.capacity,
            boot_delay_s=self._config.boot_delay_s,
            preemptions_per_hour=self._config.preemptions_per_hour,
            preemption_seed=self._config.preemption_seed,
            notice_s=self._config.notice_s,
            notice_poll_s=self._config.notice_poll_s,
        )
        return self._client.call(calls.Create(request=request), calls.INSTANCE)

    def instances(self, cluster_id: str) -> tuple[Instance, ...]:
        if not self._was_used():
            return ()
        return self._client.call(calls.Describe(cluster_id=cluster_id), calls.INSTANCES)

    def terminate(self, instance_ids: tuple[str, ...]) -> None:
        if instance_ids and self._was_used():
            self._client.call(calls.Terminate(instance_ids=instance_ids), calls.NOTHING)

    def preempt(self, instance_id: str, *, notice_s: float | None) -> None:
        self._client.call(calls.Preempt(instance_id=instance_id, notice_s=notice_s), calls.NOTHING)

    def left_behind(self, cluster_id: str) -> tuple[str, ...]:
        """Asks the cloud, and then the machine: any process that carries the cluster's mark, whoever started it."""
        instances = [i for i in self.instances(cluster_id) if i.state is not InstanceState.TERMINATED]
        strangers = [p for p in processes.marked(processes.CLUSTER_VARIABLE, cluster_id) if p.pid != os.getpid()]
        return tuple(f"instance {i.instance_id} in {i.zone} is {i.state}" for i in instances) + tuple(
            f"process {p.pid} ({processes.title(p)}) carries {processes.CLUSTER_VARIABLE}={cluster_id}"
            for p in strangers
        )

    def retire(self) -> bool:
        """End the cloud's own daemon, unless it has instances of any cluster. True: it is not there any more."""
        return self._client.retire()

    def _was_used(self) -> bool:
        """A cloud that never had an instance need not be started to be asked for them."""
        return (self._directory / "state.json").exists()
