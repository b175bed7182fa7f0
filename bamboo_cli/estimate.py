"""What each protection of a job would cost and bring, before anything is rented. Pure; docs/planner.md.

Sizes are the recipe's, where it could be tried; times are assumed to be even, since nothing has run yet.
"""

from dataclasses import dataclass

from bamboo_trainer.arrangement import Arrangement, uniform
from bamboo_trainer.control import LayerCost
from bamboo_trainer.outlook import outlook, simulate
from bamboo_trainer.paper import on_paper
from bamboo_trainer.plan import Mode
from bamboo_trainer.planner import Choice, arrange, choose
from bamboo_trainer.redundancy import missing_shadows
from bamboo_trainer.wanted import PRIOR_BOOT_S, PRIOR_HAZARD, Wanted, Weather

from bamboo_cli.config import JobConfig
from bamboo_cli.drills.promise import Rung, promise_of
from bamboo_cli.jobs import memory_bytes, run_spec
from bamboo_cli.recipe_check import LayerSize, Model

ASSUMED_FORWARD_S = 0.01
"""Of a layer and microbatch; a backward takes twice as long."""
REMOTE_BOOT_S = 300.0
"""Of an instance of EC2 and the installing of torch, before anything was measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtectionPrice:
    mode: Mode
    level: int
    step_ratio: float
    """Step time over that with ``off``, messages and sums aside."""
    memory_bytes: int | None
    """Of the fullest worker; None: the recipe was not tried."""
    peak_bytes: int | None
    """The same after a loss."""
    host_bytes: int | None
    """Beside it in host memory."""
    fits: bool
    losses_survived: int
    """Of nodes, that may come at once, wherever they are, without going back to a checkpoint."""
    survived_by: Rung
    """What a single loss of a node without warning may come to."""
    hours_between_fatal: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoChoice:
    """What the planner would take on these nodes, were it left to it."""

    pipelines: tuple[int, ...]
    """Stages of each."""
    modes: tuple[tuple[Mode, ...], ...]
    level: int
    num_standbys: int
    memory_bytes: int | None
    peak_bytes: int | None
    hours_between_fatal: float
    reason: str


def weather_of(job: JobConfig) -> Weather:
    """Of the local cloud what the job makes of it, of others what is usual."""
    is_local = job.cloud == "local"
    return Weather(
        hazard=(job.local.preemptions_per_hour if is_local else 0.0) or PRIOR_HAZARD,
        num_accelerators=job.local.accelerators,
        boot_s=PRIOR_BOOT_S + (job.local.boot_delay_s if is_local else REMOTE_BOOT_S),
        memory_bytes=memory_bytes(job),
    )


def assumed_costs(job: JobConfig, model: Model | None) -> tuple[LayerCost, ...]:
    """Even times. Without a model, a layer for each stage, or for each worker where the stages are the planner's."""
    if model is None:
        num_layers = job.num_workers if job.stages == "auto" else job.stages
        nothing = LayerSize(parameter_bytes=0, activation_bytes=0, kept_bytes=0, optimizer_bytes=0)
        return tuple(_assumed(f"layer {i}", nothing) for i in range(num_layers))
    return tuple(_assumed(name, size) for name, size in zip(model.layer_names, model.layer_sizes, strict=True))


def _assumed(name: str, size: LayerSize) -> LayerCost:
    return LayerCost(
        name=name,
        forward_s=ASSUMED_FORWARD_S,
        backward_s=2 * ASSUMED_FORWARD_S,
        parameter_bytes=size.parameter_bytes,
        activation_bytes=size.activation_bytes,
        kept_bytes=size.kept_bytes,
        optimizer_bytes=size.optimizer_bytes,
    )


def wanted_of(job: JobConfig, costs: tuple[LayerCost, ...], weather: Weather) -> Wanted:
    return run_spec(job, "", "").wanted(costs, weather)


def prices(job: JobConfig, model: Model | None) -> tuple[ProtectionPrice, ...]:
    """Of each mode in the job's shape, or in the one that the planner would take; the second level beside the first
    where it would have its shadows."""
    wanted = wanted_of(job, assumed_costs(job, model), weather_of(job))
    shape = arrange(job.num_workers, wanted)
    num_standbys = job.num_workers - shape.num_hosts
    bare_s = _step_s(shape, Mode.OFF, 1, wanted)
    found = []
    for mode in Mode:
        if mode is Mode.REROUTE and shape.num_pipelines == 1:
            continue
        can_two = mode.has_shadows and min(shape.num_stages) > 2
        for level in (1, 2) if can_two else (1,):
            arrangement = uniform(shape.cuts, wanted.num_microbatches, mode, level, shape.microbatches)
            seen = outlook(arrangement, wanted, num_standbys)
            found.append(
                ProtectionPrice(
                    mode=mode,
                    level=level,
                    step_ratio=_step_s(shape, mode, level, wanted) / bare_s,
                    memory_bytes=seen.most_bytes if model else None,
                    peak_bytes=seen.peak_bytes if model else None,
                    host_bytes=seen.host_bytes if model else None,
                    fits=seen.fits or model is None,
                    losses_survived=seen.losses_survived,
                    survived_by=_survived_by(arrangement, mode, seen.losses_survived, wanted, num_standbys),
                    hours_between_fatal=1 / seen.fatal_per_hour,
                )
            )
    return tuple(found)


def _step_s(shape: Arrangement, mode: Mode, level: int, wanted: Wanted) -> float:
    return max(
        simulate(cut, len(shape.microbatches[d]), (mode,) * len(cut), level, wanted.costs)[0]
        for d, cut in enumerate(shape.cuts)
    )


def _survived_by(arrangement: Arrangement, mode: Mode, losses_survived: int, wanted: Wanted, num_standbys: int) -> Rung:
    if losses_survived == 0:
        return Rung.RESTORED
    plan = on_paper(arrangement, wanted.weather.num_accelerators, num_standbys)
    is_shadowed = mode.has_shadows and not missing_shadows(plan, arrangement.level) and min(arrangement.num_stages) >= 2
    if mode.survives_within_step and is_shadowed:
        return Rung.SHADOW
    return promise_of(mode, num_pipelines=arrangement.num_pipelines, num_stages=min(arrangement.num_stages)).worst


def auto_choice(job: JobConfig, model: Model | None) -> AutoChoice:
    """The protection left to the planner, and of the shape what the job leaves to it."""
    free = job.model_copy(update={"redundancy": "auto", "redundancy_level": "auto"})
    found: Choice = choose(job.num_workers, wanted_of(free, assumed_costs(job, model), weather_of(job)))
    arrangement = found.arrangement
    return AutoChoice(
        pipelines=arrangement.num_stages,
        modes=arrangement.modes,
        level=arrangement.level,
        num_standbys=found.num_standbys,
        memory_bytes=found.outlook.most_bytes if model else None,
        peak_bytes=found.outlook.peak_bytes if model else None,
        hours_between_fatal=1 / found.outlook.fatal_per_hour,
        reason=found.reason,
    )
