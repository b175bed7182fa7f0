"""The plan: who runs and who shadows what. Immutable; its ``generation`` travels with every message.

Only the coordinator makes plans. A *boundary* plan starts a step from committed state: everybody drops what is in
flight, fetches the layers that it lacks and begins at ``first_step``. A *failover* plan is made in mid-step: the cut
stays, the shadows of lost stages become their hosts, and everybody keeps what it has of the step.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NewType

NodeId = NewType("NodeId", str)
WorkerId = NewType("WorkerId", str)
"""``<node_id>/<incarnation>``: a worker process that is started anew is another worker. Incarnations are counted over
all accelerators of the node."""


def node_id_of(worker_id: WorkerId) -> NodeId:
    return NodeId(worker_id.rpartition("/")[0])


class Mode(StrEnum):
    """How a stage is protected, and when redundant forward computation (FRC) is done. ``lazy``, ``eager`` and ``full``
    are the paper's comparison, NSDI'23 section 6."""

    OFF = "off"
    """No shadow. A loss runs the step again if another pipeline has the layers, else goes back to a checkpoint."""
    MIRROR = "mirror"
    """Shadows keep the state current and do nothing else: after a loss the step is run again."""
    REROUTE = "reroute"
    """No shadow: a worker of another pipeline that holds the layers takes the stage over, within the step."""
    LAZY = "lazy"
    """Shadows keep the state current and their inputs; they compute only after a loss, within the step."""
    BUBBLE = "bubble"
    """FRC only while the worker would wait; what did not fit is computed if a loss needs it."""
    EAGER = "eager"
    """All FRC, every step."""
    FULL = "full"
    """Shadows compute forwards and backwards, every step: the paper's worst case, kept to be measured."""

    @property
    def has_shadows(self) -> bool:
        return self not in (Mode.OFF, Mode.REROUTE)

    @property
    def survives_within_step(self) -> bool:
        return self not in (Mode.OFF, Mode.MIRROR)

    @property
    def computes_ahead(self) -> bool:
        """FRC is done before a loss."""
        return self in (Mode.BUBBLE, Mode.EAGER)


class RedundancyMemory(StrEnum):
    """Where a worker keeps what it has for the loss of others. docs/host-memory.md."""

    DEVICE = "device"
    HOST = "host"


class PlanKind(StrEnum):
    BOUNDARY = "boundary"
    FAILOVER = "failover"


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A worker that takes part, and where its peers reach it."""

    worker_id: WorkerId
    node_id: NodeId
    address: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Some microbatches of a stage, and the worker that runs them. docs/step.md."""

    first_microbatch: int
    end_microbatch: int
    host: WorkerId

    @property
    def microbatches(self) -> range:
        return range(self.first_microbatch, self.end_microbatch)


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """Layers ``[first_layer, end_layer)`` of one pipeline, the worker that runs them and those that shadow it."""

    pipeline_index: int
    stage_index: int
    first_layer: int
    end_layer: int
    host: WorkerId
    shadows: tuple[WorkerId, ...] = ()
    """The nearest predecessor first."""
    mode: Mode
    slots: tuple[tuple[int, ...], ...] = ()
    """``bubble``: for each shadow, how many layers of FRC it may have done after its n-th forward or backward. Empty:
    whenever it waits."""
    parts: tuple[Part, ...] = ()
    """After a failover: who runs which of the pipeline's microbatches, the first of them ``host``. Empty: it runs all.
    """

    @property
    def layers(self) -> range:
        return range(self.first_layer, self.end_layer)

    @property
    def place(self) -> tuple[int, int]:
        return (self.pipeline_index, self.stage_index)

    @property
    def holders(self) -> tuple[WorkerId, ...]:
        return (self.host, *self.shadows)

    def host_of(self, microbatch: int) -> WorkerId:
        return next((part.host for part in self.parts if microbatch in part.microbatches), self.host)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """One full chain of stages, and the microbatches of the global batch that run through it."""

    first_microbatch: int
    end_microbatch: int
    stages: tuple[StagePlan, ...]

    @property
    def microbatches(self) -> range:
        return range(self.first_microbatch, self.end_microbatch)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """A layer that ``worker_id`` lacks. ``source`` is the live holder to ask; None: the checkpoint (or the seed)."""

    worker_id: WorkerId
    layer: int
    source: WorkerId | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSummary:
    """What a committed step leaves behind, equal on every worker.

    ``losses``: per microbatch of the global batch, mean over its samples. ``square_norms``: per reduction unit, the
    sum of squares of the reduced gradient in float64 (the global norm is the root of their sum, in unit order).
    """

    step: int
    losses: tuple[float, ...]
    square_norms: tuple[float, ...]

    @property
    def loss(self) -> float:
        return sum(self.losses) / len(self.losses)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    generation: int
    kind: PlanKind
    first_step: int
    """Boundary: the first step to run. Failover: the first step of the boundary plan that it descends from."""
    pipelines: tuple[Pipeline, ...]
    members: tuple[Member, ...]
    fetches: tuple[Fetch, ...] = ()
    checkpoint_step: int | None = None
    """Fetches without a source load from the checkpoint of this step; None: initialise from the seed."""
    continues: int = 0
    """Boundary: the generation of the boundary plan whose last step is just before ``first_step``; 0: none such, or
    steps of it are run again."""
    told_step: int = -1
    """The coordinator knows of every step up to here; the reporter tells of those after it, if it remembers them."""
    roll_forward: StepSummary | None = None
    """Boundary: a worker that holds the reduced gradients of this step but has not applied them does so first."""
    reason: str = ""
    """One sentence for people."""

    @property
    def num_pipelines(self) -> int:
        return len(self.pipelines)

    @property
    def num_microbatches(self) -> int:
        return self.pipelines[-1].end_microbatch

    @property
    def num_layers(self) -> int:
        return self.pipelines[0].stages[-1].end_layer

    def stages(self) -> Iterator[StagePlan]:
        for pipeline in self.pipelines:
            yield from pipeline.stages

    def stage(self, pipeline_index: int, stage_index: int) -> StagePlan:
        return self.pipelines[pipeline_index].stages[stage_index]

    def stage_of_layer(self, pipeline_index: int, layer: int) -> StagePlan:
        for stage in self.pipelines[pipeline_index].stages:
            if layer in stage.layers:
                return stage
        raise ValueError(f"plan {self.generation} has no layer {layer} in pipeline {pipeline_index}")

    def hosted_by(self, worker_id: WorkerId) -> tuple[StagePlan, ...]:
        return tuple(stage for stage in self.stages() if stage.host == worker_id)

    def parts_of(self, stage: StagePlan) -> tuple[Part, ...]:
        """One, where nobody helps."""
        if stage.parts:
            return stage.parts
        pipeline = self.pipelines[stage.pipeline_index]
        return (
            Part(first_microbatch=pipeline.first_microbatch, end_microbatch=pipeline.end_microbatch, host=stage.host),
        )

    def load(self) -> Counter[WorkerId]:
        """Microbatches of stages that each worker runs in a step."""
        found: Counter[WorkerId] = Counter()
        for stage in self.stages():
            for part in self.parts_of(stage):
                found[part.host] += len(part.microbatches)
        return found

    def shadowed_by(self, worker_id: WorkerId) -> tuple[StagePlan, ...]:
        return tuple(stage for stage in self.stages() if worker_id in stage.shadows)

    def layers_of(self, worker_id: WorkerId) -> tuple[int, ...]:
        """Every layer that the worker must hold, hosted or shadowed, in order."""
        return tuple(sorted({layer for s in self.stages() if worker_id in s.holders for layer in s.layers}))

    def saved_by(self, worker_id: WorkerId) -> tuple[int, ...]:
        """Layers that the worker writes into checkpoints: hosts share them out over the pipelines."""
        d = self.num_pipelines
        return tuple(x for x in range(self.num_layers) if self.stage_of_layer(x % d, x).host == worker_id)

    def holders_of(self, layer: int) -> tuple[WorkerId, ...]:
        """Live holders in pipeline order, hosts before shadows, each once."""
        stages = [self.stage_of_layer(d, layer) for d in range(self.num_pipelines)]
        candidates = [s.host for s in stages] + [shadow for s in stages for shadow in s.shadows]
        return tuple(dict.fromkeys(candidates))

    def worker_ids(self) -> tuple[WorkerId, ...]:
        return tuple(member.worker_id for member in self.members)

    @property
    def reporter(self) -> WorkerId:
        """The worker that tells the coordinator of committed steps: the host of the first stage."""
        return self.pipelines[0].stages[0].host


def split_microbatches(num_microbatches: int, num_pipelines: int) -> tuple[range, ...]:
    """Contiguous and as even as possible: 8 over 3 gives 3, 3, 2.

    Raises ValueError when there are fewer microbatches than pipelines.
    """
    if num_microbatches < num_pipelines:
        raise ValueError(f"{num_microbatches} microbatches cannot feed {num_pipelines} pipelines")
    base, extra = divmod(num_microbatches, num_pipelines)
    ranges, start = [], 0
    for index in range(num_pipelines):
        end = start + base + (1 if index < extra else 0)
        ranges.append(range(start, end))
        start = end
    return tuple(ranges)
