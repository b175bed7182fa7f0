"""Layers that change hands while training goes on: a learner gets a layer and then follows it. See docs/handover.md.

Like the executor: no torch, no sockets, no clock. A learner takes no part in the step, and nobody waits for it.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from bamboo_trainer import control
from bamboo_trainer.compute import Compute, Value
from bamboo_trainer.frames import LearnLayer, Taught, Update
from bamboo_trainer.plan import Plan, StepSummary, WorkerId

LessonFrame = LearnLayer | Taught | Update
SendLesson = Callable[[WorkerId, LessonFrame], None]


@dataclass(frozen=True, slots=True)
class _Lesson:
    """A layer that is being learned. ``step``: what it is at; None: it is not here yet."""

    source: WorkerId
    step: int | None = None
    num_bytes: int = 0


class Learning:
    """Both sides of one worker. ``base_generation``: of the boundary plan under which the layers are taught."""

    def __init__(self, compute: Compute, send: SendLesson, report: Callable[[control.FromWorker], None]) -> None:
        self._compute = compute
        self._send = send
        self._report = report
        self._base_generation = 0
        self._lessons: dict[int, _Lesson] = {}
        self._teaches_under = 0
        self._learners: dict[int, set[WorkerId]] = {}

    # --- the learner ------------------------------------------------------------------------------------------

    def learn(self, message: control.Learn) -> None:
        """Ask for the layers. What is being learned from the same source goes on; all else is forgotten."""
        wanted = {fetch.layer: fetch.source for fetch in message.fetches if fetch.source is not None}
        if message.base_generation != self._base_generation:
            self._forget(self._lessons)
            self._base_generation = message.base_generation
        self._forget([x for x, lesson in self._lessons.items() if wanted.get(x) != lesson.source])
        for layer, source in wanted.items():
            if layer not in self._lessons:
                self._lessons[layer] = _Lesson(source)
                self._ask(layer, source)
        self._tell_if_complete()

    def link_up(self, peer: WorkerId) -> None:
        """What was under way on the old link may be lost: its layers are asked for anew."""
        again = [x for x, lesson in self._lessons.items() if lesson.source == peer]
        self._forget(again)
        for layer in again:
            self._lessons[layer] = _Lesson(peer)
            self._ask(layer, peer)

    def adopt(self, plan: Plan, wanted: Collection[int]) -> frozenset[int]:
        """A boundary plan begins: the layers of ``wanted`` that were learned up to its first step are held from now on
        and returned; all others are forgotten. Sources forget their learners."""
        fresh = frozenset(
            x
            for x in wanted
            if plan.continues == self._base_generation
            and x in self._lessons
            and self._lessons[x].step == plan.first_step - 1
        )
        for layer in fresh:
            del self._lessons[layer]
            self._compute.hold_learned(layer)
        self._forget(self._lessons)
        self._base_generation = 0
        self._teaches_under, self._learners = plan.generation, {}
        return fresh

    def _ask(self, layer: int, source: WorkerId) -> None:
        self._send(source, LearnLayer(generation=self._base_generation, layer=layer))

    def _forget(self, layers: Collection[int]) -> None:
        for layer in list(layers):
            if self._lessons.pop(layer).step is not None:
                self._compute.forget_learned(layer)

    def _tell_if_complete(self) -> None:
        if self._lessons and all(lesson.step is not None for lesson in self._lessons.values()):
            self._report(
                control.Learned(
                    base_generation=self._base_generation,
                    layers=tuple(sorted(self._lessons)),
                    num_bytes=sum(lesson.num_bytes for lesson in self._lessons.values()),
                )
            )

    # --- the source -------------------------------------------------------------------------------------------

    @property
    def learners(self) -> frozenset[WorkerId]:
        return frozenset[WorkerId]().union(*self._learners.values())

    def teach_step(
        self, summary: StepSummary, sums: Mapping[int, Sequence[Value]], units_of: Callable[[int], Sequence[int]]
    ) -> None:
        """A step is committed here. ``sums``: reduced gradients by unit; ``units_of``: the units that touch a layer."""
        for layer, learners in self._learners.items():
            if not all(unit in sums for unit in units_of(layer)):
                continue  # handed over: it is held no more
            update = Update(
                generation=self._teaches_under,
                layer=layer,
                summary=summary,
                sums={unit: list(sums[unit]) for unit in units_of(layer)},
            )
            for learner in learners:
                self._send(learner, update)

    # --- both -------------------------------------------------------------------------------------------------

    def receive(self, sender: WorkerId, frame: LessonFrame, committed_step: int) -> None:
        match frame:
            case LearnLayer() if frame.generation == self._teaches_under:
                if frame.layer in self._compute.held_layers():
                    self._learners.setdefault(frame.layer, set()).add(sender)
                    state = self._compute.export_layer(frame.layer)
                    self._send(
                        sender,
                        Taught(generation=frame.generation, layer=frame.layer, step=committed_step, state=state),
                    )
            case Taught() if self._expects(sender, frame):
                num_bytes = self._compute.learn(frame.layer, frame.state)
                self._lessons[frame.layer] = _Lesson(sender, frame.step, num_bytes)
                self._tell_if_complete()
            case Update() if self._expects(sender, frame):
                step = frame.summary.step
                lesson = self._lessons[frame.layer]
                if lesson.step == step - 1:
                    self._compute.follow(frame.layer, step, frame.sums, frame.summary.square_norms)
                    self._lessons[frame.layer] = replace(lesson, step=step)
            case _:
                pass  # of an older plan, or of a layer that is not wanted any more

    def _expects(self, sender: WorkerId, frame: Taught | Update) -> bool:
        lesson = self._lessons.get(frame.layer)
        return frame.generation == self._base_generation and lesson is not None and lesson.source == sender
