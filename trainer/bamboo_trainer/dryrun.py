"""One step of a plan on paper: who does what when, the bubbles, what stays in memory, and whether it ends at all.

Asks ``schedule.next_action`` exactly as the executor does, so what is drawn is what is run. Messages take no time and
redundant forwards go layer by layer, as a worker may leave one between layers when a message arrives. No torch.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from bamboo_trainer.helping import with_help
from bamboo_trainer.plan import Plan, WorkerId
from bamboo_trainer.redundancy import fail_over
from bamboo_trainer.routes import Routes
from bamboo_trainer.schedule import (
    Action,
    HostedStage,
    Key,
    Kind,
    ShadowedStage,
    backward_key,
    forward_key,
    next_action,
    partial_key,
)
from bamboo_trainer.step import StepState


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """Of one microbatch through one layer, by layer; a redundant forward takes as long as a forward.

    Any unit. Without measurements a backward takes twice a forward (two matrix products for one).
    """

    forward: Sequence[float]
    backward: Sequence[float]

    @classmethod
    def even(cls, num_layers: int) -> "Durations":
        return cls(forward=[1.0] * num_layers, backward=[2.0] * num_layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    worker_id: WorkerId
    start: float
    end: float
    action: Action
    redundant: bool
    """Another worker is responsible for it: FRC, or all of a shadow's work in ``full`` mode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    workers: tuple[WorkerId, ...]
    slots: tuple[Slot, ...]
    makespan: float
    peak_activations: dict[WorkerId, int]
    """Microbatches whose activations a worker holds at most at a time, redundant ones included."""
    num_redundant: int
    """Redundant forwards that fit (all of them in eager mode)."""
    wanted_redundant: int
    """What it would take for every shadow to be ready for a loss at the end of the step."""

    @property
    def bubble_share(self) -> float:
        """Share of the workers' time without normal computation; P − 1 over M + P − 1 for even stages."""
        normal = sum(s.end - s.start for s in self.slots if not s.redundant)
        return 1 - normal / (self.makespan * len(self.workers))

    @property
    def idle_share(self) -> float:
        """Share of the workers' time with nothing to do at all."""
        return 1 - sum(s.end - s.start for s in self.slots) / (self.makespan * len(self.workers))


class DeadlockError(Exception):
    """Somebody still has work, and nobody can do any. The message says who waits for what."""


@dataclass(slots=True)
class _Worker:
    worker_id: WorkerId
    state: StepState
    busy_until: float = 0.0
    doing: Action | None = None
    has: set[Key] = field(default_factory=set)
    peak_activations: int = 0
    at_hand: dict[tuple[int, int], int] = field(default_factory=dict)
    """Layers, over all microbatches, of stages taken over that went forward redundantly before."""

    @property
    def hosted(self) -> list[HostedStage]:
        return self.state.hosted

    @property
    def shadowed(self) -> list[ShadowedStage]:
        return self.state.shadowed

    @property
    def live_activations(self) -> int:
        in_flight = sum(h.next_forward - h.next_backward for h in self.hosted)
        return in_flight + sum(s.next_redundant - s.microbatches.start for s in self.shadowed)

    @property
    def finished(self) -> bool:
        return all(h.finished and (h.contributed or h.redundant) for h in self.hosted)


def dry_run(plan: Plan, durations: Durations, loss: Action | None = None, *, helped: bool = True) -> DryRun:
    """One step of ``plan`` from its start. Raises DeadlockError.

    ``loss``: who would begin this action is lost there, and everybody knows at once. So what the step takes longer is
    what a failover has to compute again. ``helped``: others share it. Raises ValueError when nobody begins it, or the
    step cannot survive it.
    """
    routes = Routes(plan, ())
    workers = {worker_id: _worker(plan, routes, worker_id) for worker_id in plan.worker_ids()}
    slots: list[Slot] = []
    now = 0.0
    while True:
        for worker in workers.values():
            if worker.doing is not None and worker.busy_until <= now:
                _finish(routes, workers, worker)
        victim = None if loss is None else _victim(workers, loss)
        if victim is not None:
            routes, loss = _fail_over(plan, workers, victim, helped=helped), None
        for worker in workers.values():
            _start(routes, workers, worker, now, durations, slots)
        busy = [worker.busy_until for worker in workers.values() if worker.doing is not None]
        if not busy:
            break
        now = min(busy)
    if loss is not None:
        raise ValueError(f"no worker begins {loss} in this step")
    if not all(worker.finished for worker in workers.values()):
        raise DeadlockError(_who_waits(workers.values()))
    return DryRun(
        workers=plan.worker_ids(),
        slots=tuple(slots),
        makespan=max(slot.end for slot in slots),
        peak_activations={worker.worker_id: worker.peak_activations for worker in workers.values()},
        num_redundant=sum(s.next_redundant - s.microbatches.start for w in workers.values() for s in w.shadowed),
        wanted_redundant=sum(len(s.microbatches) for w in workers.values() for s in w.shadowed),
    )


def _worker(plan: Plan, routes: Routes, worker_id: WorkerId) -> _Worker:
    state = StepState(0)
    state.place(plan, routes, worker_id)
    return _Worker(worker_id=worker_id, state=state)


def _victim(workers: dict[WorkerId, _Worker], loss: Action) -> _Worker | None:
    """The worker that would begin the action now."""
    free = [w for w in workers.values() if w.doing is None]
    return next((w for w in free if next_action(w.hosted, w.shadowed, w.has.__contains__) == loss), None)


def _fail_over(plan: Plan, workers: dict[WorkerId, _Worker], victim: _Worker, *, helped: bool) -> Routes:
    """Its shadow takes over, and everybody sends again what the new hosts lack: as ``executor`` does it."""
    del workers[victim.worker_id]
    promoted = fail_over(plan, {victim.worker_id}, plan.generation + 1)
    if promoted is None:
        raise ValueError(f"the step is lost with {victim.worker_id}: nobody can take its stages over")
    if helped:
        promoted = with_help(promoted, plan)
    routes = Routes(promoted, ())
    for worker in workers.values():
        done = {s.stage.place: s.num_layers_done for s in worker.shadowed}
        for hosted in worker.state.place(promoted, routes, worker.worker_id):
            worker.at_hand[hosted.stage.place] = done.get(hosted.stage.place, 0)
        if worker.doing is not None and _is_overtaken(worker, worker.doing):
            worker.doing = None
    for worker in workers.values():
        for key in [key for key in worker.has if routes.producer(key) == worker.worker_id]:
            for receiver in routes.receivers(key):
                workers[receiver].has.add(key)
    return routes


def _is_overtaken(worker: _Worker, action: Action) -> bool:
    """FRC of a stage that the worker hosts by now."""
    places = {s.stage.place for s in worker.shadowed}
    return action.kind is Kind.REDUNDANT_FORWARD and (action.pipeline_index, action.stage_index) not in places


def _start(
    routes: Routes,
    workers: dict[WorkerId, _Worker],
    worker: _Worker,
    now: float,
    durations: Durations,
    slots: list[Slot],
) -> None:
    """Give an idle worker its next action; contributions take no time and are done at once."""
    while worker.doing is None:
        action = next_action(worker.hosted, worker.shadowed, worker.has.__contains__)
        if action is None:
            return
        if action.kind is Kind.CONTRIBUTE:
            _contribute(routes, workers, worker, _hosted(worker, action))
            continue
        times = durations.backward if action.kind is Kind.BACKWARD else durations.forward
        worker.doing = action
        worker.busy_until = now + sum(times[layer] for layer in _layers(worker, action))
        redundant = action.kind is Kind.REDUNDANT_FORWARD or _hosted(worker, action).redundant
        slots.append(
            Slot(worker_id=worker.worker_id, start=now, end=worker.busy_until, action=action, redundant=redundant)
        )


def _contribute(routes: Routes, workers: dict[WorkerId, _Worker], worker: _Worker, hosted: HostedStage) -> None:
    hosted.contributed = True
    d, end = hosted.stage.pipeline_index, hosted.microbatches.stop
    for layer in hosted.stage.layers:
        if routes.producer(partial_key(layer, d, end)) == worker.worker_id and hosted.stage.parts:
            _deliver(routes, workers, worker, hosted, partial_key(layer, d, end))


def _finish(routes: Routes, workers: dict[WorkerId, _Worker], worker: _Worker) -> None:
    action = worker.doing
    assert action is not None
    worker.doing = None
    d, s, m = action.pipeline_index, action.stage_index, action.microbatch
    if action.kind is Kind.REDUNDANT_FORWARD:
        shadowed = _shadowed(worker, action)
        complete = (shadowed.num_layers_done + 1) % len(shadowed.stage.layers) == 0
        shadowed.advance(complete=complete)
        if complete and any(other.stage.place == (d, s + 1) for other in worker.shadowed):
            worker.has.add(forward_key(d, s + 1, m))
    elif action.kind is Kind.FORWARD:
        hosted = _hosted(worker, action)
        hosted.next_forward += 1
        if s + 1 < hosted.num_stages:
            _deliver(routes, workers, worker, hosted, forward_key(d, s + 1, m))
    else:
        worker.peak_activations = max(worker.peak_activations, worker.live_activations)
        hosted = _hosted(worker, action)
        hosted.next_backward += 1
        if s > 0:
            _deliver(routes, workers, worker, hosted, backward_key(d, s - 1, m))
    worker.peak_activations = max(worker.peak_activations, worker.live_activations)


def _layers(worker: _Worker, action: Action) -> Sequence[int]:
    """That the action goes through."""
    if action.kind is not Kind.REDUNDANT_FORWARD:
        hosted = _hosted(worker, action)
        layers = hosted.stage.layers
        if action.kind is Kind.FORWARD:
            before = (action.microbatch - hosted.microbatches.start) * len(layers)
            return layers[max(0, worker.at_hand.get(hosted.stage.place, 0) - before) :]
        return layers
    shadowed = _shadowed(worker, action)
    return [shadowed.stage.layers[shadowed.num_layers_done % len(shadowed.stage.layers)]]


def _shadowed(worker: _Worker, action: Action) -> ShadowedStage:
    return next(s for s in worker.shadowed if s.stage.place == (action.pipeline_index, action.stage_index))


def _deliver(routes: Routes, workers: dict[WorkerId, _Worker], worker: _Worker, hosted: HostedStage, key: Key) -> None:
    worker.has.add(key)
    for receiver in () if hosted.redundant else routes.receivers(key):
        workers[receiver].has.add(key)


def _hosted(worker: _Worker, action: Action) -> HostedStage:
    return next(h for h in worker.hosted if h.is_of(action))


def _who_waits(workers: Iterable[_Worker]) -> str:
    waiting = [
        f"{worker.worker_id} at stage {h.stage.stage_index} of pipeline {h.stage.pipeline_index}: "
        f"next forward {h.next_forward}, next backward {h.next_backward}"
        for worker in workers
        for h in worker.hosted
        if not h.finished
    ]
    return "nobody can go on; " + "; ".join(waiting)
