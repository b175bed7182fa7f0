"""What one worker knows of the step in flight: the data by key, the counters, who holds what. Forgotten at commit."""

from collections.abc import Iterable

from bamboo_trainer.compute import Unit, Value
from bamboo_trainer.frames import Held
from bamboo_trainer.plan import Mode, Plan, StagePlan, WorkerId
from bamboo_trainer.routes import Routes
from bamboo_trainer.schedule import HostedStage, Key, ShadowedStage, Share, reduced_key


class StepState:
    """``store`` keeps everything made or received until the step is committed, to be sent again if a peer lacks it."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.store: dict[Key, Value] = {}
        self.losses: dict[int, float] = {}
        self.hosted: list[HostedStage] = []
        self.shadowed: list[ShadowedStage] = []
        self.reducible: list[tuple[int, int]] = []
        """(unit, chunk) of which this worker is the reducer and has every contribution, but not yet the sum."""
        self.held: dict[WorkerId, Held] = {}
        self.told_held = False
        self.peer_has: dict[WorkerId, frozenset[Key]] = {}

    def add(self, key: Key, value: Value, routes: Routes, worker_id: WorkerId) -> None:
        self.store[key] = value
        if key.kind == "C" and routes.reducer(key.a, key.b) == worker_id:
            self._note_reducible(key.a, key.b, routes)

    def _note_reducible(self, unit: int, chunk: int, routes: Routes) -> None:
        if reduced_key(unit, chunk) not in self.store and all(
            part in self.store for part in routes.contributions(unit, chunk)
        ):
            self.reducible.append((unit, chunk))

    def place(self, plan: Plan, routes: Routes, worker_id: WorkerId) -> list[HostedStage]:
        """Takes the stages of a plan; keeps the counters of those already here. Returns the newly hosted ones."""
        counters = {h.share: h for h in self.hosted}
        done = {s.stage.place: s for s in self.shadowed}
        self.hosted, self.shadowed, fresh = [], [], []
        for stage, part in ((s, p) for s in plan.stages() for p in plan.parts_of(s) if p.host == worker_id):
            before = counters.get(Share(*stage.place, part.first_microbatch))
            self.hosted.append(_hosted(stage, part.microbatches, plan, before))
            if before is None or before.redundant:
                fresh.append(self.hosted[-1])
                self.hosted[-1].taken_over = bool(counters)  # else the step begins
        for stage in _by_distance(plan.shadowed_by(worker_id), worker_id):
            if stage.mode is Mode.FULL:
                microbatches = plan.pipelines[stage.pipeline_index].microbatches
                before = counters.get(Share(*stage.place, microbatches.start))
                self.hosted.append(_hosted(stage, microbatches, plan, before, redundant=True))
            else:
                self.shadowed.append(_shadowed(stage, plan, done.get(stage.place), worker_id))
        self.reducible = []
        for unit, chunk in routes.units_reduced_by(worker_id):
            self._note_reducible(unit.index, chunk, routes)
        return fresh

    def new_generation(self) -> None:
        """What peers said under the old plan no longer counts; they say it again."""
        self.held = {}
        self.told_held = False
        self.peer_has = {}

    def has_sum(self, unit_index: int, num_chunks: int) -> bool:
        return all(reduced_key(unit_index, chunk) in self.store for chunk in range(num_chunks))

    def has_sums(self, units: Iterable[Unit], num_chunks: int) -> bool:
        return all(self.has_sum(unit.index, num_chunks) for unit in units)

    def sum(self, unit_index: int, num_chunks: int) -> list[Value]:
        return [self.store[reduced_key(unit_index, chunk)] for chunk in range(num_chunks)]

    @property
    def spared(self) -> frozenset[Share]:
        return frozenset(hosted.share for hosted in self.hosted if hosted.spared)


def _hosted(
    stage: StagePlan, microbatches: range, plan: Plan, before: HostedStage | None, *, redundant: bool = False
) -> HostedStage:
    """A part that has grown goes on where it was; what it contributed was the sum of the smaller one."""
    pipeline = plan.pipelines[stage.pipeline_index]
    same = before is not None and before.microbatches == microbatches
    return HostedStage(
        stage=stage,
        num_stages=len(pipeline.stages),
        microbatches=microbatches,
        next_forward=microbatches.start if before is None else before.next_forward,
        next_backward=microbatches.start if before is None else before.next_backward,
        contributed=before is not None and same and before.contributed,
        redundant=redundant,
        apart=microbatches.start != pipeline.first_microbatch,
        spared=before is not None and same and before.spared,
        taken_over=before is not None and before.taken_over,
    )


def _shadowed(stage: StagePlan, plan: Plan, before: ShadowedStage | None, worker_id: WorkerId) -> ShadowedStage:
    microbatches = plan.pipelines[stage.pipeline_index].microbatches
    return ShadowedStage(
        stage=stage,
        microbatches=microbatches,
        next_redundant=microbatches.start if before is None else before.next_redundant,
        num_layers_done=0 if before is None else before.num_layers_done,
        slots=stage.slots[stage.shadows.index(worker_id)] if stage.slots else (),
    )


def _by_distance(stages: Iterable[StagePlan], worker_id: WorkerId) -> list[StagePlan]:
    """The nearest successor first: the outputs of its FRC are the inputs of the next one's."""
    return sorted(stages, key=lambda stage: stage.shadows.index(worker_id))
