"""The flight recorder: notes what the worker's loop does and when, and sends some steps up. See docs/trace.md.

It is wrapped around an executor and only looks on. A step's notes are a page. The newest pages are kept, so that also
the step before a change of plan, which nobody saw coming, can be sent.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bamboo_trainer.control import Arrival, FromWorker, Recorded, RecordedWhy, Slot
from bamboo_trainer.frames import Datum, FetchLayer, Frame, Held, LayerHere, LearnLayer, Taught
from bamboo_trainer.plan import Plan, PlanKind, WorkerId
from bamboo_trainer.schedule import Action, Key, Kind
from bamboo_trainer.wrapping import ExecutorLike, Wrapped

FIRST_STEPS = 3
"""Of a plan: its first fetches layers and fills caches, two more show how it runs."""
EVERY = 50
"""Of the others. A page of 64 microbatches is about 8 kB: at a step a second, a worker sends 10 kB a minute, and an
hour of a run shows in 72 steps whether anything drifts."""
PAGES_KEPT = 2
"""At a change of plan a worker may be one step ahead of its peers; so the step before has two candidates."""
PAGES_UNSENT = 4
"""A worker that never waits sends when so many lie ready."""
ARRIVALS_KEPT = 1 << 16


@dataclass(slots=True)
class _Page:
    """``began``, and all times of its notes: on the monotonic clock."""

    step: int
    began: float
    generation: int
    why: RecordedWhy | None
    """None: only kept."""
    committed: bool = False
    sent: bool = False
    slots: list[tuple[Action | str, float, float]] = field(default_factory=list)
    arrivals: list["_Arrived"] = field(default_factory=list)


_Arrived = tuple[int | None, Key | str, WorkerId, float]
"""Step (None: a layer, of whichever is at hand), what, from whom, when."""


class RecordingExecutor(Wrapped[ExecutorLike]):
    """``arrived`` may be called from any thread; the rest from the worker's loop."""

    def __init__(
        self,
        inner: ExecutorLike,
        worker_id: WorkerId,
        run_id: str,
        report: Callable[[FromWorker], None],
        monotonic: Callable[[], float] = time.monotonic,
        epoch: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(inner)
        self._worker_id = worker_id
        self._run_id = run_id
        self._report = report
        self._monotonic = monotonic
        self._epoch = epoch
        self._page: _Page | None = None
        self._num_steps = 0
        """Begun under the plan."""
        self._kept: deque[_Page] = deque(maxlen=PAGES_KEPT)
        self._unsent: list[_Page] = []
        self._arrived: deque[_Arrived] = deque(maxlen=ARRIVALS_KEPT)

    # --- what the loop uses ---

    def next(self) -> Action | None:
        """A wait is when pages are sent: it costs the step nothing."""
        action = self._inner.next()
        if action is None:
            if self._page is not None and self._inner.step > self._page.step:
                self._close()
            if self._unsent:
                self._send()
        return action

    def perform(self, action: Action) -> None:
        page = self._page
        if page is None or (page.step != self._inner.step and action.kind is not Kind.SAVE):
            page = self._turn()
        start = self._monotonic()
        self._inner.perform(action)
        page.slots.append((action, start, self._monotonic()))

    def receive(self, sender: WorkerId, frame: Frame) -> None:
        page, step, start = self._page, self._inner.step, self._monotonic()
        self._inner.receive(sender, frame)
        if page is None:
            return
        if isinstance(frame, LayerHere | Taught):
            page.slots.append((f"LOAD{frame.layer}", start, self._monotonic()))
        elif isinstance(frame, FetchLayer | LearnLayer):
            page.slots.append((f"GIVE{frame.layer}", start, self._monotonic()))
        elif page.step == step < self._inner.step:  # a peer says that the step was committed
            page.slots.append((Kind.COMMIT.value, start, self._monotonic()))

    def adopt(self, plan: Plan) -> None:
        is_new = plan.generation > self._inner.generation
        if is_new and self._page is not None and self._inner.step > self._page.step:
            self._close()
        start = self._monotonic()
        self._inner.adopt(plan)
        if is_new:
            self._changed(plan, start)

    def arrived(self, sender: WorkerId, frame: Frame) -> None:
        """The frame is here; the loop gets to it when it has done what it is at."""
        if frame.generation < self._inner.generation:
            return
        if isinstance(frame, Datum):
            self._arrived.append((frame.step, frame.key, sender, self._monotonic()))
        elif isinstance(frame, Held):
            self._arrived.append((frame.step, Kind.HOLD.value, sender, self._monotonic()))
        elif isinstance(frame, LayerHere | Taught):
            self._arrived.append((None, f"LAYER{frame.layer}", sender, self._monotonic()))

    # --- pages ---

    def _changed(self, plan: Plan, start: float) -> None:
        if plan.kind is PlanKind.BOUNDARY:
            self._close()
        for page in self._kept:
            if page.why is not RecordedWhy.CHANGE:
                page.why, page.sent = RecordedWhy.CHANGE, False
                self._unsent.append(page)
        if self._worker_id not in plan.worker_ids():
            self._close()
            return
        page = self._page or self._begin(start)
        self._num_steps = 1
        page.why, page.generation = RecordedWhy.CHANGE, plan.generation
        name = "PLAN" if plan.kind is PlanKind.BOUNDARY else "FAILOVER"
        page.slots.append((f"{name}{plan.generation}", start, self._monotonic()))

    def _turn(self) -> _Page:
        """To the step at hand. The wait before its first action is part of it."""
        page = self._page
        began = page.slots[-1][2] if page is not None and page.slots else self._monotonic()
        self._close()
        return self._begin(began)

    def _begin(self, began: float) -> _Page:
        step = self._inner.step
        why = None
        if self._num_steps < FIRST_STEPS:
            why = RecordedWhy.FIRST
        elif step % EVERY == 0:
            why = RecordedWhy.SAMPLE
        self._num_steps += 1
        self._page = _Page(step, began, self._inner.generation, why)
        return self._page

    def _close(self) -> None:
        page, self._page = self._page, None
        if page is None or not page.slots:
            return
        page.committed = self._inner.step > page.step
        for _ in range(len(self._arrived)):
            note = self._arrived.popleft()
            if note[0] is None or note[0] == page.step:
                page.arrivals.append(note)
            elif note[0] > page.step:
                self._arrived.append(note)
        self._kept.append(page)
        if page.why is not None:
            self._unsent.append(page)
            if len(self._unsent) > PAGES_UNSENT:
                self._send()

    def _send(self) -> None:
        unsent, self._unsent = self._unsent, []
        for page in unsent:
            if not page.sent:
                page.sent = True
                self._report(self._recorded(page))

    def _recorded(self, page: _Page) -> Recorded:
        def us(at: float) -> int:
            return round((at - page.began) * 1e6)

        assert page.why is not None
        slots = [
            Slot(str(action), action.pipeline_index if isinstance(action, Action) else 0, us(start), us(end))
            for action, start, end in page.slots
        ]
        return Recorded(
            run_id=self._run_id,
            generation=page.generation,
            step=page.step,
            began_at=self._epoch() - (self._monotonic() - page.began),
            committed=page.committed,
            why=page.why,
            slots=tuple(_joined(slots)),
            arrivals=tuple(Arrival(*_spelt(what), sender, us(at)) for _, what, sender, at in page.arrivals),
        )


def _joined(slots: Sequence[Slot]) -> list[Slot]:
    """A redundant forward is one action a layer: those of one microbatch in a row become one slot."""
    joined: list[Slot] = []
    for slot in slots:
        if joined and joined[-1][:2] == slot[:2] and Kind.REDUNDANT_FORWARD in slot.action:
            joined[-1] = joined[-1]._replace(end_us=slot.end_us)
        else:
            joined.append(slot)
    return joined


def _spelt(what: Key | str) -> tuple[str, int]:
    """The action that made the datum, and its pipeline."""
    if isinstance(what, str):
        return what, 0
    if what.kind == "F":
        return str(Action(Kind.FORWARD, what.a, what.b - 1, what.c)), what.a
    if what.kind == "B":
        return str(Action(Kind.BACKWARD, what.a, what.b + 1, what.c)), what.a
    if what.kind == "C":
        return f"C{what.a}.{what.b}", what.c
    if what.kind == "P":
        return f"SUM{what.a}.{what.c}", what.b
    return str(Action(Kind.REDUCE, unit_index=what.a, chunk=what.b)), 0
