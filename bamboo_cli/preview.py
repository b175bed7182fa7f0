"""What a job would look like on the nodes that it asks for, before anything is rented. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from bamboo_trainer.arrangement import arrangement_of
from bamboo_trainer.dryrun import DryRun, Durations, dry_run, grid
from bamboo_trainer.outlook import fatal_rate
from bamboo_trainer.placement import Candidate
from bamboo_trainer.plan import Mode, NodeId, Plan, WorkerId
from bamboo_trainer.reconfigure import plan_boundary
from bamboo_trainer.survival import zones_that_matter
from bamboo_trainer.wanted import Wanted

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


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedNode:
    node_id: NodeId
    zone: str
    instance_type: str
    pipeline_index: int | None
    """None: a standby."""
    stage_index: int | None
    shadows_stages: tuple[int, ...]
    spot_usd_per_hour: float
    on_demand_usd_per_hour: float
    schedule: str
    """One step: a column per forward time, as ``dryrun.grid`` draws it."""
    peak_activations: int
    """Microbatches whose activations it holds at most at a time."""


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
    plan = _plan(wanted, zones)
    result = dry_run(plan, Durations.even(len(costs)))
    unit = float(max(len(stage.layers) for stage in plan.stages()))
    hazard = weather_of(job).hazard
    placed = [_placed(index, zone, plan, result, unit) for index, zone in enumerate(zones)]
    modes = tuple(dict.fromkeys(stage.mode for stage in plan.stages()))
    num_standbys = job.num_nodes - sum(len(p.stages) for p in plan.pipelines)
    nodes = tuple(sorted(placed, key=lambda node: (node.pipeline_index is None, node.pipeline_index, node.stage_index)))
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
        if result.wanted_redundant and set(modes) & {Mode.BUBBLE, Mode.EAGER}
        else None,
        hours_between_fatal=1 / fatal_rate(arrangement_of(plan), wanted, num_standbys),
        hazard=hazard,
        zones_that_matter=zones_that_matter(plan, {NodeId(f"n{i + 1}"): zone.name for i, zone in enumerate(zones)}),
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
    if job.num_nodes == len(stages):
        found.append("no node stands by: after a loss a neighbour runs two stages until a new node has booted")
    if job.pipelines == "auto":
        found.append("with `pipelines: auto` the last bits of the weights depend on which nodes come and go when")
    if job.cloud == "aws" and "0.0.0.0/0" in job.on_aws.ssh_from:
        found.append("SSH is open to the whole world (aws.ssh_from)")
    if not job.local.replace:
        found.append("nodes that are taken are not replaced (local.replace: false)")
    if model is None:
        found.append("memory is not known, since the recipe was not tried")
    return found


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


def _plan(wanted: Wanted, zones: list[MarketZone]) -> Plan:
    """The coordinator's own planner."""
    candidates = [
        Candidate(
            worker_id=WorkerId(f"n{index + 1}/1"),
            node_id=NodeId(f"n{index + 1}"),
            zone=zone.name,
            address="",
            port=0,
        )
        for index, zone in enumerate(zones)
    ]
    return plan_boundary(generation=1, first_step=0, candidates=candidates, wanted=wanted)


def _placed(index: int, zone: MarketZone, plan: Plan, result: DryRun, unit: float) -> PlacedNode:
    node_id = NodeId(f"n{index + 1}")
    member = next((member for member in plan.members if member.node_id == node_id), None)
    hosted = plan.hosted_by(member.worker_id)[0] if member else None
    shadowed = plan.shadowed_by(member.worker_id) if member else ()
    return PlacedNode(
        node_id=node_id,
        zone=zone.name,
        instance_type=zone.instance_type,
        pipeline_index=hosted.pipeline_index if hosted else None,
        stage_index=hosted.stage_index if hosted else None,
        shadows_stages=tuple(stage.stage_index for stage in shadowed),
        spot_usd_per_hour=zone.spot_usd_per_hour,
        on_demand_usd_per_hour=zone.on_demand_usd_per_hour,
        schedule=grid(result, unit)[member.worker_id] if member else "",
        peak_activations=result.peak_activations[member.worker_id] if member else 0,
    )
