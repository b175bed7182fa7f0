"""What a run asks of its plans, what was measured of its layers, and what is expected of the hours to come. Pure."""

from dataclasses import dataclass, field

from bamboo_trainer.control import LayerCost
from bamboo_trainer.plan import Mode, RedundancyMemory

PRIOR_HAZARD = 0.5
"""Losses per node and hour until some are seen: one per node in two hours."""
PRIOR_BYTES_PER_S = 100e6
"""Of a link, until one has been seen: a little under a gigabit a second."""
PRIOR_SWITCH_S = 1.0
"""Pause of a change of plan until one has been seen."""
PRIOR_BOOT_S = 60.0
"""Until a new node's worker is ready; a few seconds on the local cloud, a minute or two on others."""
PRIOR_RESTORE_S = 60.0
"""What a fatal loss costs: reading a checkpoint, and half an interval between two of them run again."""
TAKE_IN_S = 5.0
"""From a loss to the step from which others hold the layers (a few steps; measured: 1 to 3)."""
HORIZON_S = 3600.0
"""How long a plan is thought to be in force, when nothing is known against it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """Priors, each replaced by what the run has seen."""

    hazard: float = PRIOR_HAZARD
    """Losses per node and hour."""
    num_accelerators: int = 1
    """Of a node, each with a worker: a loss takes so many."""
    link_bytes_per_s: float = PRIOR_BYTES_PER_S
    switch_s: float = PRIOR_SWITCH_S
    boot_s: float = PRIOR_BOOT_S
    restore_s: float = PRIOR_RESTORE_S
    memory_bytes: int | None = None
    """Of one worker, for the model; None: no limit is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the run asks for, and what was measured of it. None: the planner chooses (``auto``)."""

    num_pipelines: int | None
    num_stages: int | None
    mode: Mode | None
    level: int | None = 1
    """How many shadows a stage has: so many consecutive losses are survived in place."""
    num_microbatches: int
    costs: tuple[LayerCost, ...]
    """By layer, for one microbatch."""
    weather: Weather = field(default_factory=Weather)
    redundancy_memory: RedundancyMemory = RedundancyMemory.DEVICE

    @property
    def num_layers(self) -> int:
        return len(self.costs)

    @property
    def forward_s(self) -> tuple[float, ...]:
        return tuple(cost.forward_s for cost in self.costs)

    @property
    def backward_s(self) -> tuple[float, ...]:
        return tuple(cost.backward_s for cost in self.costs)

    @property
    def costs_s(self) -> tuple[float, ...]:
        return tuple(cost.forward_s + cost.backward_s for cost in self.costs)

    @property
    def is_auto(self) -> bool:
        """Something is left to the planner."""
        return None in (self.num_pipelines, self.num_stages, self.mode, self.level)

    @property
    def is_redundant(self) -> bool:
        """Every stage shall have shadows. One sits on the preceding stage, so it takes two stages to have one."""
        can = self.num_layers >= 2 and (self.num_stages is None or self.num_stages >= 2)
        return self.mode is not None and self.mode.has_shadows and can

    @property
    def is_protected(self) -> bool:
        """A single loss leaves every layer on a live worker."""
        several = self.num_pipelines is not None and self.num_pipelines >= 2
        return self.is_redundant or (self.mode is not None and self.mode.survives_within_step and several)
