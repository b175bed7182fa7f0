"""What one worker knows of the step in flight: the data by key, the counters, who holds what. Forgotten at commit."""

from collections.abc import Iterable

from bamboo_trainer.compute import Unit, Value
from bamboo_trainer.frames import Held
from bamboo_trainer.plan import Mode, Plan, StagePlan, WorkerId
from bamboo_trainer.routes import Routes
from bamboo_trainer.schedule import HostedStage, Key, ShadowedStage, backward_key, reduced_key


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
        counters = {h.stage.place: h for h in self.hosted}
        done = {s.stage.place: s for s in self.shadowed}
        self.hosted, self.shadowed, fresh = [], [], []
        for stage in plan.hosted_by(worker_id):
            before = counters.get(stage.place)
            self.hosted.append(_hosted(stage, plan, before))
            if before is None or before.redundant:
                fresh.append(self.hosted[-1])
        for stage in _by_distance(plan.shadowed_by(worker_id), worker_id):
            if stage.mode is Mode.FULL:
                self.hosted.append(_hosted(stage, plan, counters.get(stage.place), redundant=True))
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

    def nothing_left_to_do(self, stage: StagePlan, plan: Plan, units: Iterable[Unit]) -> bool:
        """The stage's lost host had already brought everything of this step to where it is needed.

        The sums hold its contribution, so its backwards were done; what it sent upstream came by another way and may
        be lost. A stage without parameters has no sums to tell by, and is run again.
        """
        d, s = stage.pipeline_index, stage.stage_index
        microbatches = plan.pipelines[d].microbatches
        touched = [unit for unit in units if any(layer in stage.layers for layer in unit.layers)]
        sums = bool(touched) and self.has_sums(touched, plan.num_pipelines)
        upstream = s == 0 or all(backward_key(d, s - 1, m) in self.store for m in microbatches)
        is_last = s == len(plan.pipelines[d].stages) - 1
        losses = not is_last or all(m in self.losses for m in microbatches)  # they travel upstream with the gradients
        return sums and upstream and losses


def _hosted(stage: StagePlan, plan: Plan, before: HostedStage | None, *, redundant: bool = False) -> HostedStage:
    pipeline = plan.pipelines[stage.pipeline_index]
    start = pipeline.first_microbatch
    return HostedStage(
        stage=stage,
        num_stages=len(pipeline.stages),
        microbatches=pipeline.microbatches,
        next_forward=start if before is None else before.next_forward,
        next_backward=start if before is None else before.next_backward,
        contributed=before is not None and before.contributed,
        redundant=redundant,
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
