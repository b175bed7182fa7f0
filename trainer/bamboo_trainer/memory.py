"""What a worker keeps in memory under an arrangement, as a formula over measured layers. Pure; docs/planner.md.

The framework itself, buffers of sockets and the allocator's slack are not in it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from bamboo_trainer.arrangement import Arrangement
from bamboo_trainer.control import LayerCost
from bamboo_trainer.plan import Mode, RedundancyMemory

GRADIENT_BUFFERS = 2
"""``FlatGradient`` has two that take turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerMemory:
    """Bytes of the device; of a worker without one, of its only memory."""

    state: int
    """Parameters and optimizer of the stage that it runs."""
    gradients: int
    activations: int
    """In flight, and what it made and received in the step: kept to the commit, to be sent again."""
    shadows: int
    """All that it keeps for the stages that it shadows."""
    takeover: int
    """More than that after the loss of the successor that needs most: gradients, and activations in flight."""
    host: int = 0
    """Beside it in host memory: what the shadows keep there."""

    @property
    def usual(self) -> int:
        return self.state + self.gradients + self.activations + self.shadows

    @property
    def peak(self) -> int:
        """After a loss."""
        return self.usual + self.takeover


def memory_of(
    arrangement: Arrangement,
    costs: Sequence[LayerCost],
    pipeline_index: int,
    stage_index: int,
    redundant_share: Sequence[float] = (),
    redundancy_memory: RedundancyMemory = RedundancyMemory.DEVICE,
) -> WorkerMemory:
    """Of the host of a stage. ``redundant_share``: by stage, of the FRC of it that is done (all, where it is empty)."""
    d, s = pipeline_index, stage_index
    shadows = takeover = aside = passing = 0
    for other in arrangement.shadowed_by(d, s):
        mode = arrangement.modes[d][other]
        share = redundant_share[other] if redundant_share else 1.0
        kept = _shadow_bytes(arrangement, costs, d, other, share)
        ahead = _ahead_bytes(arrangement, costs, d, other, share)
        if redundancy_memory is RedundancyMemory.HOST and mode is not Mode.FULL:
            layers = [costs[x] for x in arrangement.cuts[d][other]]
            near = sum(c.parameter_bytes for c in layers) if mode.computes_ahead else 0
            passing = max(passing, *(c.state_bytes + c.parameter_bytes + c.kept for c in layers))
            aside += kept - near
            kept, ahead = near, 0
        shadows += kept
        if mode.survives_within_step:
            takeover = max(takeover, sum(_host_bytes(arrangement, costs, d, other, ahead)) - kept)
    state, gradients, activations = _host_bytes(arrangement, costs, d, s)
    return WorkerMemory(
        state=state,
        gradients=gradients,
        activations=activations,
        shadows=shadows + passing,
        takeover=max(0, takeover - passing),
        host=aside,
    )


def help_that_fits(
    arrangement: Arrangement,
    costs: Sequence[LayerCost],
    helper: tuple[int, int],
    stage: tuple[int, int],
    redundancy_memory: RedundancyMemory,
    limit_bytes: int,
) -> int:
    """For how many microbatches of another pipeline's stage a worker has room: each with the stage's gradient, kept
    apart, and what is exchanged; beside those in flight and the sum. Both by pipeline and stage."""
    layers = [costs[x] for x in arrangement.cuts[stage[0]][stage[1]]]
    gradient = sum(c.parameter_bytes for c in layers)
    in_flight = (len(arrangement.cuts[stage[0]]) - stage[1]) * sum(c.kept for c in layers)
    free = limit_bytes - memory_of(arrangement, costs, *helper, (), redundancy_memory).usual - in_flight - gradient
    each = gradient + _exchanged_bytes(arrangement, costs, *stage)
    return max(0, free) // max(1, each)


def _host_bytes(
    arrangement: Arrangement, costs: Sequence[LayerCost], d: int, s: int, ahead: int = 0
) -> tuple[int, int, int]:
    """State, gradients and activations. A lone pipeline's sum is a view of its gradient; of several, the sum and the
    share of the contributions that the worker adds up are beside it. ``ahead``: forwards that FRC has done."""
    layers = [costs[x] for x in arrangement.cuts[d][s]]
    num_stages, num_microbatches = len(arrangement.cuts[d]), len(arrangement.microbatches[d])
    parameters = sum(c.parameter_bytes for c in layers)
    sums = 2 * parameters if arrangement.num_pipelines > 1 else 0
    in_flight = max(ahead, min(num_stages - s, num_microbatches) * sum(c.kept for c in layers))
    return (
        sum(c.state_bytes for c in layers),
        GRADIENT_BUFFERS * parameters + sums,
        in_flight + num_microbatches * _exchanged_bytes(arrangement, costs, d, s),
    )


def _exchanged_bytes(arrangement: Arrangement, costs: Sequence[LayerCost], d: int, s: int) -> int:
    """Of one microbatch: the input, the output and the gradients of both."""
    cut = arrangement.cuts[d]
    inputs = costs[cut[s].start - 1].activation_bytes if s > 0 else 0
    outputs = costs[cut[s].stop - 1].activation_bytes if s + 1 < len(cut) else 0
    return 2 * (inputs + outputs)


def _shadow_bytes(arrangement: Arrangement, costs: Sequence[LayerCost], d: int, s: int, share: float) -> int:
    """Of one shadow of the stage: its state, its reduced gradient, and what the mode computes ahead."""
    mode = arrangement.modes[d][s]
    if mode is Mode.FULL:
        return sum(_host_bytes(arrangement, costs, d, s))
    layers = [costs[x] for x in arrangement.cuts[d][s]]
    state = sum(c.state_bytes + c.parameter_bytes for c in layers)
    return state + _ahead_bytes(arrangement, costs, d, s, share)


def _ahead_bytes(arrangement: Arrangement, costs: Sequence[LayerCost], d: int, s: int, share: float) -> int:
    """What FRC keeps to the end of the step, or for a takeover."""
    mode = arrangement.modes[d][s]
    if not mode.computes_ahead:
        return 0
    done = 1.0 if mode is Mode.EAGER else share
    return round(done * len(arrangement.microbatches[d]) * sum(costs[x].kept for x in arrangement.cuts[d][s]))
