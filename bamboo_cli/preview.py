"""What a job would look like on the nodes that it asks for, before anything is rented. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from bamboo_trainer.arrangement import arrangement_of
from bamboo_trainer.dryrun import DryRun, Durations, dry_run
from bamboo_trainer.grid import grid
from bamboo_trainer.outlook import fatal_rate
from bamboo_trainer.placement import Candidate
from bamboo_trainer.plan import Mode, NodeId, Plan, WorkerId
from bamboo_trainer.reconfigure import plan_boundary
from bamboo_trainer.survival import losses_survived, zones_that_matter
from bamboo_trainer.wanted import Wanted
from fsspec.core import split_protocol

from bamboo_cli.config import JobConfig
from bamboo_cli.coordinator.zones import region_of
from bamboo_cli.estimate import (
    AutoChoice,
    ProtectionPrice,
    assumed_costs,
    auto_choice,
    prices,
    wanted_of,
    weather_of,
)
from bamboo_cli.market import MarketZone, local_market
from bamboo_cli.recipe_check import Model

NO_CREDENTIALS = "nodes get no credentials for S3: checkpoints need an `aws.instance_profile` that may write there"


OWN_DISKS = (
    "checkpoint.url is a folder, and on AWS each node has one of its own, which ends with it: fine only where an image "
    "mounts the same file system there on all nodes"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedWorker:
    worker_id: WorkerId
    pipeline_index: int | None
    """None: a standby."""
    stage_index: int | None
    shadows_stages: tuple[int, ...]
    schedule: str
    """One step: a column per forward time, as ``dryrun.grid`` draws it."""
    peak_activations: int
    """Microbatches whose activations it holds at most at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedNode:
    node_id: NodeId
    zone: str
    instance_type: str
    spot_usd_per_hour: float
    on_demand_usd_per_hour: float
    workers: tuple[PlacedWorker, ...]
    """One on each accelerator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    model: Model | None
    """None: the recipe was not tried."""
    nodes: tuple[PlacedNode, ...]
    num_pipelines: int
    num_stages: tuple[int, ...]
    """Of each pipeline."""
    num_microbatches: int
    microbatch_size: int
    modes: tuple[Mode, ...]
    """Each that some stage is protected by."""
    bubble_share: float
    """Of the workers' time, were all stages even and a backward twice a forward."""
    redundant_share: float | None
    """Of the redundant forwards, what fits into the bubbles (all in eager mode). None: the mode computes none."""
    hours_between_fatal: float
    """Until a layer loses all its holders at once, on average, at ``hazard`` and if nodes go independently."""
    hazard: float
    """Losses per node and hour that is reckoned with."""
    zones_that_matter: tuple[str, ...]
    """Whose loss at once would leave a layer without a holder."""
    spot_usd_per_hour: float
    on_demand_usd_per_hour: float
    protections: tuple[ProtectionPrice, ...]
    auto: AutoChoice
    price_sources: tuple[str, ...]
    warnings: tuple[str, ...]


def preview(job: JobConfig, model: Model | None = None, market: Sequence[MarketZone] | None = None) -> Preview:
    """Nodes best zone first and spread over zones, stages even, or layers where the stages are the planner's.
    ``market`` None: the job's local one. Raises dryrun.DeadlockError."""
    zones = _spread(local_market(job) if market is None else market, job.num_nodes)
    costs = assumed_costs(job, model if job.is_auto else None)
    wanted = wanted_of(job, costs, weather_of(job))
    plan = _plan(wanted, _candidates(zones, job.local.accelerators))
    result = dry_run(plan, Durations.even(len(costs)))
    unit = float(max(len(stage.layers) for stage in plan.stages()))
    hazard = weather_of(job).hazard
    candidates = _candidates(zones, job.local.accelerators)
    placed = [
        PlacedNode(
            node_id=node_id,
            zone=zone.name,
            instance_type=zone.instance_type,
            spot_usd_per_hour=zone.spot_usd_per_hour,
            on_demand_usd_per_hour=zone.on_demand_usd_per_hour,
            workers=tuple(_placed(c.worker_id, plan, result, unit) for c in candidates if c.node_id == node_id),
        )
        for node_id, zone in _named(zones).items()
    ]
    modes = tuple(dict.fromkeys(stage.mode for stage in plan.stages()))
    num_standbys = job.num_workers - sum(len(p.stages) for p in plan.pipelines)
    nodes = tuple(sorted(placed, key=lambda node: min(_rank(worker) for worker in node.workers)))
    return Preview(
        model=model,
        nodes=nodes,
        num_pipelines=plan.num_pipelines,
        num_stages=tuple(len(p.stages) for p in plan.pipelines),
        num_microbatches=job.num_microbatches,
        microbatch_size=job.microbatch_size,
        modes=modes,
        bubble_share=result.bubble_share,
        redundant_share=result.num_redundant / result.wanted_redundant
        if result.wanted_redundant and any(mode.computes_ahead for mode in modes)
        else None,
        hours_between_fatal=1 / fatal_rate(arrangement_of(plan), wanted, num_standbys),
        hazard=hazard,
        zones_that_matter=zones_that_matter(plan, {node_id: zone.name for node_id, zone in _named(zones).items()}),
        spot_usd_per_hour=sum(node.spot_usd_per_hour for node in nodes),
        on_demand_usd_per_hour=sum(node.on_demand_usd_per_hour for node in nodes),
        protections=prices(job, model),
        auto=auto_choice(job, model),
        price_sources=tuple(dict.fromkeys(zone.price_source for zone in zones)),
        warnings=tuple(_warnings(job, plan, model)),
    )


def _warnings(job: JobConfig, plan: Plan, model: Model | None) -> list[str]:
    found = []
    stages = tuple(plan.stages())
    if {stage.mode for stage in stages} == {Mode.OFF} and plan.num_pipelines == 1:
        found.append("redundancy is off: every loss goes back to the newest checkpoint")
    elif {stage.mode for stage in stages} == {Mode.OFF}:
        found.append("redundancy is off: after a loss the step runs again from the layers of another pipeline")
    elif {stage.mode for stage in stages} == {Mode.MIRROR}:
        found.append("shadows compute nothing: after a loss the step runs again")
    elif len(stages) == 1:
        found.append("with one stage nobody can shadow it: every loss goes back to the newest checkpoint")
    found += _shared_nodes(job, plan)
    if job.num_workers == len(stages):
        found.append("no node stands by: after a loss a neighbour runs two stages until a new node has booted")
    if job.pipelines == "auto":
        found.append("with `pipelines: auto` the last bits of the weights depend on which nodes come and go when")
    found += storage_warnings(job)
    if job.cloud == "aws" and "0.0.0.0/0" in job.on_aws.ssh_from:
        found.append("SSH is open to the whole world (aws.ssh_from)")
    if not job.local.replace:
        found.append("nodes that are taken are not replaced (local.replace: false)")
    if model is None:
        found.append("memory is not known, since the recipe was not tried")
    return found


def storage_warnings(job: JobConfig) -> list[str]:
    """Why nodes on AWS may not come to their checkpoints."""
    if job.cloud != "aws":
        return []
    protocol = split_protocol(job.checkpoint.url or "")[0]
    if protocol in ("s3", "s3a") and job.on_aws.instance_profile is None:
        return [NO_CREDENTIALS]
    return [OWN_DISKS] if protocol in (None, "file", "local") else []


def _spread(market: Sequence[MarketZone], num_nodes: int) -> list[MarketZone]:
    """A zone per node: round the zones of the first region, best first, as long as they have room."""
    home = [zone for zone in market if region_of(zone.name) == region_of(market[0].name)]
    room = {zone.name: num_nodes if zone.capacity is None else zone.capacity for zone in home}
    chosen: list[MarketZone] = []
    while len(chosen) < num_nodes:
        for zone in home:
            if room[zone.name] and len(chosen) < num_nodes:
                room[zone.name] -= 1
                chosen.append(zone)
    return chosen


def _named(zones: list[MarketZone]) -> dict[NodeId, MarketZone]:
    return {NodeId(f"n{index + 1}"): zone for index, zone in enumerate(zones)}


def _candidates(zones: list[MarketZone], num_accelerators: int) -> list[Candidate]:
    return [
        Candidate(worker_id=WorkerId(f"{node_id}/{k + 1}"), node_id=node_id, zone=zone.name, address="", port=0)
        for node_id, zone in _named(zones).items()
        for k in range(num_accelerators)
    ]


def _plan(wanted: Wanted, candidates: list[Candidate]) -> Plan:
    """The coordinator's own planner."""
    return plan_boundary(generation=1, first_step=0, candidates=candidates, wanted=wanted)


def _placed(worker_id: WorkerId, plan: Plan, result: DryRun, unit: float) -> PlacedWorker:
    is_member = worker_id in plan.worker_ids()
    hosted = plan.hosted_by(worker_id)[0] if is_member else None
    return PlacedWorker(
        worker_id=worker_id,
        pipeline_index=hosted.pipeline_index if hosted else None,
        stage_index=hosted.stage_index if hosted else None,
        shadows_stages=tuple(stage.stage_index for stage in plan.shadowed_by(worker_id)),
        schedule=grid(result, unit)[worker_id] if is_member else "",
        peak_activations=result.peak_activations[worker_id] if is_member else 0,
    )


def _rank(worker: PlacedWorker) -> tuple[bool, int, int]:
    """In the order of the stages, standbys last."""
    return worker.pipeline_index is None, worker.pipeline_index or 0, worker.stage_index or 0


def _shared_nodes(job: JobConfig, plan: Plan) -> list[str]:
    """What a node takes with it only because its workers go together."""
    several = [stage for p in plan.pipelines for stage in p.stages if len(p.stages) > 1 and stage.mode.has_shadows]
    if job.local.accelerators == 1 or not (several or plan.num_pipelines > 1):
        return []
    if not losses_survived(plan):
        where = "all workers are on one node" if job.num_nodes == 1 else "some layers are on one node alone"
        return [f"{where}: its loss goes back to the newest checkpoint; with another node it would not"]
    bare = sum(not stage.shadows for stage in several)
    if not bare:
        return []
    what = "1 stage has no shadow" if bare == 1 else f"{bare} stages have no shadow"
    return [f"{what}, since it could only sit on the stage's own node; with another node it could"]
