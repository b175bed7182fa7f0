"""The local provider: a cloud of processes on this machine. See docs/local-cloud.md."""

import os
from dataclasses import dataclass
from pathlib import Path

from bamboo_cli.errors import CloudError
from bamboo_cli.providers.base import Instance, InstanceState, NodeConfig, Offer
from bamboo_cli.providers.local_cloud import calls, processes
from bamboo_cli.providers.local_cloud.client import CloudClient
from bamboo_cli.providers.local_cloud.model import Request
from bamboo_cli.providers.local_cloud.trace import Moment, TraceError, read_trace, scale


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalZone:
    name: str
    spot_usd_per_hour: float
    on_demand_usd_per_hour: float
    capacity: int | None = None
    """Live instances that the zone holds; None: any number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalTrace:
    """A recorded trace, and how it is replayed: see ``local_cloud.trace.scale``."""

    path: str
    num_nodes: int
    speed: float = 1.0
    start_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalConfig:
    """What the cloud is like; the job's ``local`` section."""

    zones: tuple[LocalZone, ...]
    instance_type: str = "local"
    num_accelerators: int = 1
    """Of an instance."""
    boot_delay_s: float = 0.5
    preemptions_per_hour: float = 0.0
    """Expected per instance; the moments follow from ``preemption_seed`` and the order of creation."""
    preemption_seed: int = 0
    """Also of which instances a trace takes."""
    notice_s: float | None = 120.0
    """Ahead of a preemption by probability or by a trace; None: without notice."""
    notice_poll_s: float = 1.0
    """How often an agent asks for a notice."""
    trace: LocalTrace | None = None
    """Begins when the cluster asks for its first instance."""


class LocalProvider:
    name = "local"
    poll_s = 0.5
    ends_within_s = 30.0
    unlisted_s = 0.0

    def __init__(self, directory: Path, config: LocalConfig, *, idle_s: float = 30.0) -> None:
        """``directory``: the cloud's own, for all clusters. ``idle_s``: how long it outlives its last instance."""
        self._directory = directory.absolute()
        self._config = config
        self._client = CloudClient(self._directory, idle_s=idle_s)
        self._following = config.trace is None

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
        self._follow(config.cluster_id)
        request = Request(
            token=token,
            config=config,
            instance_type=offer.instance_type,
            num_accelerators=self._config.num_accelerators,
            zone=zone.name,
            capacity=zone.capacity,
            boot_delay_s=self._config.boot_delay_s,
            preemptions_per_hour=self._config.preemptions_per_hour,
            preemption_seed=self._config.preemption_seed,
            notice_s=self._config.notice_s,
            notice_poll_s=self._config.notice_poll_s,
        )
        return self._client.call(calls.Create(request=request), calls.INSTANCE)

    def _follow(self, cluster_id: str) -> None:
        """Before the first instance, and again by a coordinator that was started anew, which changes nothing."""
        trace = self._config.trace
        if self._following or trace is None:
            return
        changes = scale(
            load_trace(Path(trace.path)), num_nodes=trace.num_nodes, speed=trace.speed, start_s=trace.start_s
        )
        follow = calls.Follow(cluster_id=cluster_id, changes=changes, seed=self._config.preemption_seed)
        self._client.call(follow, calls.NOTHING)
        self._following = True

    def instances(self, cluster_id: str) -> tuple[Instance, ...]:
        if not self._was_used():
            return ()
        return self._client.call(calls.Describe(cluster_id=cluster_id), calls.INSTANCES)

    def parts(self) -> "tuple[LocalProvider, ...]":
        return (self,)

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

    def clean(self, cluster_id: str) -> None:
        """There is nothing but instances."""

    def retire(self) -> bool:
        """End the cloud's own daemon, unless it has instances of any cluster. True: it is not there any more."""
        return self._client.retire()

    def _was_used(self) -> bool:
        """A cloud that never had an instance need not be started to be asked for them."""
        return (self._directory / "state.json").exists()


def load_trace(path: Path) -> tuple[Moment, ...]:
    """Raises CloudError."""
    try:
        return read_trace(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise CloudError(f"the trace {path} cannot be read: {error}") from error
    except TraceError as error:
        raise CloudError(
            f"the trace {path}: {error}",
            next_step="It needs a line `milliseconds,add,name` or `milliseconds,remove,name` for each instance that "
            "came or went, in order of time.",
        ) from error
