"""What an arrangement is worth: seconds a step, memory, losses, and the samples that it commits an hour. Pure.

The formulas and what they take for granted: docs/planner.md.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

from bamboo_trainer.arrangement import Arrangement
from bamboo_trainer.bubbles import with_slots
from bamboo_trainer.control import LayerCost
from bamboo_trainer.dryrun import DryRun, Durations, dry_run
from bamboo_trainer.helping import part_size
from bamboo_trainer.memory import WorkerMemory, memory_of
from bamboo_trainer.paper import Place, by_node, homes_of, on_paper
from bamboo_trainer.plan import Mode, NodeId, Plan
from bamboo_trainer.survival import fatal_per_hour, losses_survived
from bamboo_trainer.wanted import TAKE_IN_S, Wanted, Weather

MAX_DRY_ACTIONS = 1_000
"""Forwards and backwards of one pipeline's step: beyond them its time is the formula's."""
USABLE = 0.6
"""Of a worker's idle time, what FRC can use, when nothing is run dry: at the end of a step there is none left to do."""
HALT_S = 0.15
"""What it takes to stop everybody and begin anew, more than a failover takes. ``benchmarks.rungs``: a refill lost 0.83
of a step of 448 ms, where half a step and its travel are 0.5."""
REROUTE_FACTOR = 2.0
"""A takeover by a worker that keeps nothing of the stage's inputs, in a pipeline of its own. ``benchmarks.rungs``: 1.7
steps, where a stage's share of the step is 0.8."""
HELP = 0.75
"""Of a takeover, the part that other pipelines' helpers spare: so much of their share of the microbatches. By the dry
run (docs/step.md) half of the microbatches spare 0.35 to 0.42 of it."""

Cut = tuple[range, ...]
Shares = tuple[float, ...]
"""By stage: of its redundant forwards, what a step does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    step_s: float
    microbatches_per_hour: float
    """The score: committed, expected losses and their price included."""
    fatal_per_hour: float
    """Times an hour that all holders of some layer go together."""
    losses_survived: int
    """Of nodes at once, whichever they are, that leave each layer a holder."""
    memory: tuple[tuple[WorkerMemory, ...], ...]
    """By pipeline and stage."""
    shares: tuple[Shares, ...]
    fits: bool
    """Into the memory of a worker, a takeover included."""

    @property
    def most_bytes(self) -> int:
        """Of the fullest worker."""
        return max(m.usual for row in self.memory for m in row)

    @property
    def peak_bytes(self) -> int:
        """Of the fullest worker after a loss."""
        return max(m.peak for row in self.memory for m in row)

    @property
    def host_bytes(self) -> int:
        """Of the worker that keeps most in host memory, beside its device's."""
        return max(m.host for row in self.memory for m in row)


@lru_cache(maxsize=256)
def outlook(arrangement: Arrangement, wanted: Wanted, num_standbys: int) -> Outlook:
    """Raises dryrun.DeadlockError when the arrangement cannot do a step."""
    costs, weather = wanted.costs, wanted.weather
    runs = [
        simulate(cut, len(arrangement.microbatches[d]), arrangement.modes[d], arrangement.level, costs)
        for d, cut in enumerate(arrangement.cuts)
    ]
    shares = tuple(share for _, share in runs)
    step_s = max(
        made_s + hops_s(cut, len(arrangement.microbatches[d]), costs, weather) + _tail_s(arrangement, d, wanted)
        for d, (cut, (made_s, _)) in enumerate(zip(arrangement.cuts, runs, strict=True))
    )
    memory = tuple(
        tuple(memory_of(arrangement, costs, d, s, shares[d], wanted.redundancy_memory) for s in range(len(cut)))
        for d, cut in enumerate(arrangement.cuts)
    )
    fatal = fatal_rate(arrangement, wanted, num_standbys)
    homes = homes_of(arrangement, weather.num_accelerators, num_standbys)
    lost_share = fatal / 3600.0 * weather.restore_s + sum(
        weather.hazard / 3600.0 * loss_s(arrangement, homes, lost, wanted, step_s, shares, num_standbys)
        for lost in by_node(homes)
    )
    return Outlook(
        step_s=step_s,
        microbatches_per_hour=3600.0 * wanted.num_microbatches / step_s / (1.0 + lost_share),
        fatal_per_hour=fatal,
        losses_survived=losses_survived(on_paper(arrangement, weather.num_accelerators, num_standbys)),
        memory=memory,
        shares=shares,
        fits=weather.memory_bytes is None or all(m.peak <= weather.memory_bytes for row in memory for m in row),
    )


# --- time -------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def simulate(
    cut: Cut, num_microbatches: int, modes: tuple[Mode, ...], level: int, costs: tuple[LayerCost, ...]
) -> tuple[float, Shares]:
    """Seconds of one pipeline's forwards and backwards, messages and sums aside, and the FRC done meanwhile."""
    if 2 * num_microbatches * len(cut) > MAX_DRY_ACTIONS:
        return _by_formula(cut, num_microbatches, modes, costs)
    plan = on_paper(
        Arrangement(cuts=(cut,), microbatches=(range(num_microbatches),), modes=(modes,), level=level),
    )
    durations = Durations(forward=[c.forward_s for c in costs], backward=[c.backward_s for c in costs])
    bare = _dry_run_bare(cut, num_microbatches, costs)
    plan = with_slots(plan, durations, result=bare)
    always = {Mode.EAGER, Mode.FULL} & set(modes)
    shares = (_slotted(plan, s) if mode is Mode.BUBBLE else float(mode in always) for s, mode in enumerate(modes))
    return dry_run(plan, durations).makespan if always else bare.makespan, tuple(shares)


@lru_cache(maxsize=1024)
def _dry_run_bare(cut: Cut, num_microbatches: int, costs: tuple[LayerCost, ...]) -> DryRun:
    """Without any shadow."""
    plan = on_paper(
        Arrangement(cuts=(cut,), microbatches=(range(num_microbatches),), modes=((Mode.OFF,) * len(cut),), level=0)
    )
    return dry_run(plan, Durations(forward=[c.forward_s for c in costs], backward=[c.backward_s for c in costs]))


def _slotted(plan: Plan, stage_index: int) -> float:
    """Share of the nearest shadow's FRC that has a slot."""
    stage = plan.stage(0, stage_index)
    return stage.slots[0][-1] / (len(stage.layers) * plan.num_microbatches) if stage.slots else 0.0


def _by_formula(
    cut: Cut, num_microbatches: int, modes: tuple[Mode, ...], costs: Sequence[LayerCost]
) -> tuple[float, Shares]:
    forward = [sum(costs[x].forward_s for x in layers) for layers in cut]
    backward = [sum(costs[x].backward_s for x in layers) for layers in cut]
    both = [f + b for f, b in zip(forward, backward, strict=True)]
    extra = [0.0] * len(cut)
    for s, mode in enumerate(modes):
        if len(cut) > 1 and mode in (Mode.EAGER, Mode.FULL):
            extra[s - 1] += forward[s] + (backward[s] if mode is Mode.FULL else 0.0)
    made_s = flow_s(sum(both), max(b + e for b, e in zip(both, extra, strict=True)), num_microbatches)

    def share(s: int, mode: Mode) -> float:
        idle_s = made_s - num_microbatches * both[s - 1]
        return {
            Mode.BUBBLE: min(1.0, max(0.0, USABLE * idle_s / max(1e-12, num_microbatches * forward[s]))),
            Mode.EAGER: 1.0,
            Mode.FULL: 1.0,
        }.get(mode, 0.0)

    return made_s, tuple(share(s, mode) if len(cut) > 1 else 0.0 for s, mode in enumerate(modes))


def flow_s(through_s: float, longest_s: float, num_microbatches: float) -> float:
    """Of 1F1B: the first microbatch goes through all stages, each other one costs the longest stage."""
    return through_s + (num_microbatches - 1) * longest_s


def hops_s(cut: Cut, num_microbatches: int, costs: Sequence[LayerCost], weather: Weather) -> float:
    """What messages add: each border twice, there and back; and where a border takes longer than the longest stage,
    that for every microbatch."""
    borders = [costs[layers.stop - 1].activation_bytes / weather.link_bytes_per_s for layers in cut[:-1]]
    longest = max(sum(costs[x].forward_s + costs[x].backward_s for x in layers) for layers in cut)
    stretch = max(0.0, 2 * max(borders, default=0.0) - longest)
    return 2 * sum(borders) + (num_microbatches - 1) * stretch


def _tail_s(arrangement: Arrangement, d: int, wanted: Wanted) -> float:
    """From a pipeline's last backward to the end of the step: sums that travel, and the optimizer. A stage is done with
    its backwards before its predecessors are, and its sums travel meanwhile."""
    costs, cut = wanted.costs, arrangement.cuts[d]
    backward = [sum(costs[x].backward_s for x in layers) for layers in cut]
    ahead = [0.0, *accumulate(backward)]
    updates = [sum(costs[x].update_s for x in layers) for layers in cut]
    num_pipelines, tail = arrangement.num_pipelines, 0.0
    for s, layers in enumerate(cut):
        gradient = sum(costs[x].parameter_bytes for x in layers)
        holders = num_pipelines + sum(
            len(arrangement.shadow_indices(e, _of(arrangement, e, layers.start))) for e in range(num_pipelines)
        )
        sent = gradient * ((num_pipelines - 1) + (holders - 1)) / num_pipelines
        applied = updates[s] + sum(updates[other] for other in arrangement.shadowed_by(d, s))
        tail = max(tail, max(0.0, sent / wanted.weather.link_bytes_per_s - ahead[s]) + applied)
    return tail


def _of(arrangement: Arrangement, d: int, layer: int) -> int:
    """The stage of a layer."""
    return next(s for s, layers in enumerate(arrangement.cuts[d]) if layer in layers)


# --- losses -----------------------------------------------------------------------------------------------------


def loss_s(
    arrangement: Arrangement,
    homes: Mapping[Place, NodeId],
    lost: Sequence[Place],
    wanted: Wanted,
    step_s: float,
    shares: Sequence[Shares],
    num_standbys: int,
) -> float:
    """Expected price of the loss of the node that runs the stages ``lost``, at any moment of a step, in seconds of the
    whole run.

    Within the step, those who take over do the stages' whole share of it beside their own; pipelines do so side by
    side. A step that is run again has lost half of itself, and waits for the layers that a new place lacks. Both end in
    a change of plan. Without standbys, workers are missing until others have booted.
    """
    weather = wanted.weather
    missing_s = weather.boot_s * max(0, len(lost) - num_standbys) / arrangement.num_hosts
    within: dict[int, float] = {}
    for d, s in lost:
        taken_over_s = _taken_over_s(arrangement, homes, d, s, wanted, shares[d][s])
        if taken_over_s is None:
            state_bytes = sum(wanted.costs[x].state_bytes for e, other in lost for x in arrangement.cuts[e][other])
            return weather.switch_s + missing_s + HALT_S + step_s / 2 + state_bytes / weather.link_bytes_per_s
        within[d] = within.get(d, 0.0) + taken_over_s
    return weather.switch_s + missing_s + max(within.values())


def _taken_over_s(
    arrangement: Arrangement, homes: Mapping[Place, NodeId], d: int, s: int, wanted: Wanted, share: float
) -> float | None:
    """What was done once more, the rest in turns, less the FRC at hand. None: nobody can take the stage over."""
    mode = arrangement.modes[d][s]
    layers = [wanted.costs[x] for x in arrangement.cuts[d][s]]
    num_microbatches = len(arrangement.microbatches[d])
    forward_s = num_microbatches * sum(c.forward_s for c in layers)
    backward_s = num_microbatches * sum(c.backward_s for c in layers)
    has_shadow = any(homes[d, other] != homes[d, s] for other in arrangement.shadow_indices(d, s))
    if mode is Mode.FULL and has_shadow:
        return 0.0
    if mode.survives_within_step and has_shadow:
        num_helpers = num_covering(arrangement, homes, d, s)
        helped = HELP * num_helpers * part_size(num_microbatches, num_helpers) / num_microbatches
        return (forward_s * (1.0 - share) + backward_s) * (1.0 - helped)
    if mode.survives_within_step and num_covering(arrangement, homes, d, s):
        return REROUTE_FACTOR * (forward_s + backward_s)
    return None


def num_covering(arrangement: Arrangement, homes: Mapping[Place, NodeId], d: int, s: int) -> int:
    """Other pipelines in which one worker, on another node, holds all layers of the stage, as it has to for taking it
    over or for helping."""
    layers = arrangement.cuts[d][s]
    return sum(
        any(
            set(layers) <= {x for held in (other, *arrangement.shadowed_by(e, other)) for x in cut[held]}
            for other in range(len(cut))
            if homes[e, other] != homes[d, s]
        )
        for e, cut in enumerate(arrangement.cuts)
        if e != d
    )


def fatal_rate(arrangement: Arrangement, wanted: Wanted, num_standbys: int) -> float:
    """Times an hour that all holders of a layer go before others have it.

    Others have it when a stage's layers have travelled: to a standby, or to those that are left. Only where fewer than
    a fixed number of pipelines would be left is a new node waited for.
    """
    weather = wanted.weather
    biggest = max(sum(wanted.costs[x].state_bytes for x in layers) for cut in arrangement.cuts for layers in cut)
    least = 2 if wanted.is_redundant else 1
    most_lost = max(map(len, by_node(homes_of(arrangement, weather.num_accelerators, num_standbys))))
    left = arrangement.num_hosts - most_lost
    thins_out = (wanted.num_pipelines or 1) > 1 and left < least * arrangement.num_pipelines
    waits_s = weather.boot_s if thins_out and num_standbys < most_lost else 0.0
    window_s = TAKE_IN_S + waits_s + biggest / weather.link_bytes_per_s
    return fatal_per_hour(on_paper(arrangement, weather.num_accelerators, num_standbys), weather.hazard, window_s)
