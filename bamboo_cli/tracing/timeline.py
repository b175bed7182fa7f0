"""What the recorded pages and the story say together, on one line of time: slots, waits, transfers. Pure.

Times are seconds since the epoch, each on the clock of the machine that noted it.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from bamboo_trainer.control import Arrival, Recorded
from bamboo_trainer.plan import Plan, WorkerId

from bamboo_cli.coordinator.pages import Page
from bamboo_cli.coordinator.status import StoryEvent
from bamboo_cli.tracing.names import SlotKind, consumers, kind_of, maker, makes

MIN_WAIT_S = 100e-6
"""A shorter gap is the loop itself, taking the next frame."""

FAILOVER = "FAILOVER"
"""Begins the name of a slot in which a plan was adopted in mid-step; its generation follows."""
STORY_MARGIN_S = 1.0
"""What is told just before and after the pages is about them, and the coordinator has a clock of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedSlot:
    worker_id: WorkerId
    name: str
    kind: SlotKind
    pipeline_index: int
    start: float
    end: float
    waits_for: str = ""
    """Of a wait: the datum that ended it, and whose it was."""

    @property
    def stage_index(self) -> int | None:
        match = re.match(r"\d+", self.name)
        return int(match[0]) if match else None

    @property
    def is_failover(self) -> bool:
        return self.name.startswith(FAILOVER)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStep:
    """One try of one worker at one step."""

    worker_id: WorkerId
    step: int
    generation: int
    committed: bool
    start: float
    end: float
    slots: tuple[TimedSlot, ...]
    """Waits included: they fill the time from ``start`` to ``end`` but for what is shorter than ``MIN_WAIT_S``."""

    @property
    def has_failover(self) -> bool:
        return any(slot.is_failover for slot in self.slots)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """A datum from one worker to another. Without ``producer``: it was not recorded, as with one that is lost."""

    step: int
    name: str
    pipeline_index: int
    sender: WorkerId
    receiver: WorkerId
    arrived_at: float
    producer: TimedSlot | None
    consumer: TimedSlot | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    run_id: str
    steps: tuple[WorkerStep, ...]
    """By start."""
    transfers: tuple[Transfer, ...]
    story: tuple[StoryEvent, ...]

    @property
    def workers(self) -> tuple[WorkerId, ...]:
        """Also those of whom only what they sent is known; by node and age."""
        found = {step.worker_id for step in self.steps} | {transfer.sender for transfer in self.transfers}
        return tuple(sorted(found, key=_number))

    @property
    def start(self) -> float:
        """Of the first page. Raises ValueError when there is none; so does ``end``."""
        return min(step.start for step in self.steps)

    @property
    def end(self) -> float:
        return max(step.end for step in self.steps)


def recorded_steps(pages: Iterable[Page]) -> list[int]:
    return sorted({page.recorded.step for page in pages})


def telling_step(pages: Sequence[Page]) -> int:
    """The newest with a failover, else the newest. Raises ValueError where there are none."""
    failovers = [page.recorded.step for page in pages if _has_failover(page.recorded)]
    return max(failovers or recorded_steps(pages))


def around_step(pages: Sequence[Page], step: int) -> tuple[Page, ...]:
    """Its pages; where the plan failed over in it, also those of the steps before and after it."""
    wanted = {step}
    if any(page.recorded.step == step and _has_failover(page.recorded) for page in pages):
        wanted |= {step - 1, step + 1}
    return tuple(page for page in pages if page.recorded.step in wanted)


def _has_failover(page: Recorded) -> bool:
    return any(slot.action.startswith(FAILOVER) for slot in page.slots)


def timeline(
    run_id: str, pages: Iterable[Page], story: Iterable[StoryEvent] = (), plans: Iterable[Plan] = ()
) -> Timeline:
    """``story`` and ``plans``: of the whole run; what is told apart from the pages is left out."""
    hosts = _Hosts(plans)
    placed: list[tuple[WorkerStep, Recorded]] = []
    ends: dict[WorkerId, float] = defaultdict(float)
    for page in sorted(pages, key=lambda page: page.recorded.began_at):
        # The clock was read for each page anew, so that the next may seem to begin some microseconds too early.
        start = max(page.recorded.began_at, ends[page.worker_id])
        step = _worker_step(page, start, hosts)
        ends[page.worker_id] = step.end
        placed.append((step, page.recorded))
    start = min((step.start for step, _ in placed), default=0.0) - STORY_MARGIN_S
    end = max((step.end for step, _ in placed), default=0.0) + STORY_MARGIN_S
    return Timeline(
        run_id=run_id,
        steps=tuple(step for step, _ in placed),
        transfers=tuple(_transfers(placed)),
        story=tuple(event for event in story if start <= event.at <= end),
    )


class _Hosts:
    """Who is responsible for a stage: a shadow in ``full`` mode spells what it does like the host."""

    def __init__(self, plans: Iterable[Plan]) -> None:
        self._by_generation = {plan.generation: {s.place: s for s in plan.stages()} for plan in plans}

    def before(self, generation: int) -> int:
        return max((known for known in self._by_generation if known < generation), default=0)

    def is_another(self, generation: int, slot: TimedSlot) -> bool:
        """Under that plan, and as far as it is known."""
        place = (slot.pipeline_index, -1 if slot.stage_index is None else slot.stage_index)
        stage = self._by_generation.get(generation, {}).get(place)
        if stage is None:
            return False
        microbatch = re.search(r"\d+$", slot.name)
        return stage.host_of(int(microbatch[0]) if microbatch else -1) != slot.worker_id


def _worker_step(page: Page, start: float, hosts: _Hosts) -> WorkerStep:
    recorded, worker_id = page.recorded, page.worker_id
    failovers = [int(slot.action.removeprefix(FAILOVER)) for slot in recorded.slots if slot.action.startswith(FAILOVER)]
    under = hosts.before(failovers[0]) if failovers else recorded.generation
    slots: list[TimedSlot] = []
    idle_since = start
    for action, pipeline_index, start_us, end_us in recorded.slots:
        begin, end = start + start_us * 1e-6, start + end_us * 1e-6
        if begin - idle_since > MIN_WAIT_S:
            awaited = _ended_by(recorded.arrivals, action, (idle_since - start) * 1e6, start_us)
            slots.append(
                TimedSlot(
                    worker_id=worker_id,
                    name="bubble",
                    kind=SlotKind.WAIT,
                    pipeline_index=pipeline_index,
                    start=idle_since,
                    end=begin,
                    waits_for=f"{awaited.datum} of {awaited.sender}" if awaited else "",
                )
            )
        slot = TimedSlot(
            worker_id=worker_id,
            name=action,
            kind=kind_of(action),
            pipeline_index=pipeline_index,
            start=begin,
            end=end,
        )
        if slot.is_failover:
            under = int(action.removeprefix(FAILOVER))
        if slot.kind in (SlotKind.FORWARD, SlotKind.BACKWARD) and hosts.is_another(under, slot):
            slot = replace(slot, kind=SlotKind.REDUNDANT)
        slots.append(slot)
        idle_since = end
    return WorkerStep(
        worker_id=worker_id,
        step=recorded.step,
        generation=recorded.generation,
        committed=recorded.committed,
        start=start,
        end=idle_since,
        slots=tuple(slots),
    )


def _ended_by(arrivals: Iterable[Arrival], action: str, after_us: float, before_us: float) -> Arrival | None:
    """What the action used and came last, if it came in the wait before the action."""
    used = [a for a in arrivals if action in consumers(a.datum) and after_us <= a.at_us <= before_us]
    return max(used, key=lambda arrival: arrival.at_us, default=None)


def _transfers(placed: Sequence[tuple[WorkerStep, Recorded]]) -> Iterable[Transfer]:
    made: dict[tuple[WorkerId, int, str, int], list[tuple[int, TimedSlot]]] = defaultdict(list)
    for step, _ in placed:
        for slot in step.slots:
            made[step.worker_id, step.step, makes(slot.name), slot.pipeline_index].append((step.generation, slot))
    for step, recorded in placed:
        seen: set[tuple[str, int, str]] = set()
        for datum, pipeline_index, sender, at_us in recorded.arrivals:
            source = sender if datum == "HELD" else ""  # of all else the first to come counts
            if (datum, pipeline_index, source) in seen:
                continue
            seen.add((datum, pipeline_index, source))
            candidates = made[sender, step.step, maker(datum), pipeline_index]
            same_try = [slot for generation, slot in candidates if generation == step.generation]
            arrived_at = step.start + at_us * 1e-6
            wanted = consumers(datum)
            yield Transfer(
                step=step.step,
                name=datum,
                pipeline_index=pipeline_index,
                sender=sender,
                receiver=step.worker_id,
                arrived_at=arrived_at,
                producer=next(reversed(same_try or [slot for _, slot in candidates]), None),
                consumer=next((s for s in step.slots if s.name in wanted and s.start >= arrived_at), None),
            )


def _number(worker_id: WorkerId) -> tuple[tuple[int, str], ...]:
    """``n2/1`` before ``n10/1``."""
    parts = re.findall(r"\d+|\D+", worker_id)
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in parts)
