"""A timeline as Chrome trace events, which ui.perfetto.dev and chrome://tracing show. Pure.

Format: "Trace Event Format", Google, 2016. A node is a process; each worker has a thread that computes (a step, and in
it what was done) and lanes of transfers; process 0 tells the story. Times are microseconds since ``began_at``.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from bamboo_trainer.plan import WorkerId, node_id_of

from bamboo_cli.tracing.timeline import TimedSlot, Timeline, Transfer

VERSION = 1
STORY = 0
"""The process that is no node."""

TraceEvent = dict[str, Any]
"""As the format names its fields."""


def chrome_trace(found: Timeline) -> dict[str, Any]:
    """A JSON object, ready to be dumped."""
    tracks = _Tracks(found)
    events = [*tracks.names(), *_story(found, tracks), *_steps(found, tracks)]
    for transfer in found.transfers:
        events += _arrow(transfer, found, tracks)
    events += _lanes(found, tracks)
    return {
        "displayTimeUnit": "ms",
        "otherData": {"run": found.run_id, "version": VERSION, "began_at": tracks.origin},
        "traceEvents": [*tracks.lane_names(), *events],
    }


class _Tracks:
    """Numbers of processes and threads. A thread's number is used once, since some viewers ignore the process."""

    def __init__(self, found: Timeline) -> None:
        self.origin = min([found.start, *(event.at for event in found.story)])
        nodes = dict.fromkeys(node_id_of(worker_id) for worker_id in found.workers)
        self.process: dict[str, int] = {node: number for number, node in enumerate(nodes, start=1)}
        self._count = itertools.count(1)
        self.story = next(self._count)
        self.compute = {worker_id: next(self._count) for worker_id in found.workers}
        self._lane: dict[tuple[WorkerId, int], int] = {}
        self._run_id = found.run_id

    def us(self, at: float) -> int:
        return round((at - self.origin) * 1e6)

    def lane(self, worker_id: WorkerId, index: int) -> int:
        if (worker_id, index) not in self._lane:
            self._lane[worker_id, index] = next(self._count)
        return self._lane[worker_id, index]

    def place(self, worker_id: WorkerId) -> TraceEvent:
        return {"pid": self.process[node_id_of(worker_id)], "tid": self.compute[worker_id]}

    def names(self) -> Iterator[TraceEvent]:
        for name, pid in {f"run {self._run_id}": STORY, **self.process}.items():
            yield _meta("process_name", pid, name=name)
            yield _meta("process_sort_index", pid, sort_index=pid)
        yield _meta("thread_name", STORY, self.story, name="story")
        for worker_id, tid in self.compute.items():
            yield _meta("thread_name", self.process[node_id_of(worker_id)], tid, name=f"{worker_id} computes")

    def lane_names(self) -> Iterator[TraceEvent]:
        for (worker_id, _), tid in self._lane.items():
            yield _meta("thread_name", self.process[node_id_of(worker_id)], tid, name=f"to {worker_id}")


def _meta(what: str, pid: int, tid: int = 0, **args: str | int) -> TraceEvent:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args}


def _story(found: Timeline, tracks: _Tracks) -> Iterator[TraceEvent]:
    """Each event on the story's own thread, and in the process of its node where it has one here."""
    for event in found.story:
        args = {"text": event.text, **({} if event.node_id is None else {"node": event.node_id})}
        common = {"ph": "i", "name": event.kind, "cat": "story", "ts": tracks.us(event.at), "args": args}
        yield common | {"s": "t", "pid": STORY, "tid": tracks.story}
        if event.node_id in tracks.process:
            yield common | {"s": "p", "pid": tracks.process[event.node_id], "tid": 0}


def _steps(found: Timeline, tracks: _Tracks) -> Iterator[TraceEvent]:
    for step in found.steps:
        place = tracks.place(step.worker_id)
        args = {"step": step.step, "generation": step.generation, "committed": step.committed}
        name = f"step {step.step}" + ("" if step.committed else ", given up")
        yield _complete(name, "step", tracks.us(step.start), tracks.us(step.end), place, args)
        for slot in step.slots:
            yield _complete(slot.name, slot.kind, tracks.us(slot.start), tracks.us(slot.end), place, _about(slot))


def _about(slot: TimedSlot) -> TraceEvent:
    if slot.waits_for:
        return {"until": slot.waits_for}
    return {"pipeline": slot.pipeline_index}


def _complete(name: str, category: str, start: int, end: int, place: TraceEvent, args: TraceEvent) -> TraceEvent:
    return {"ph": "X", "name": name, "cat": category, "ts": start, "dur": end - start, **place, "args": args}


def _arrow(transfer: Transfer, found: Timeline, tracks: _Tracks) -> list[TraceEvent]:
    """From the slot that made the datum to the one that used it; of forwards and backwards, which is enough to see."""
    made, used = transfer.producer, transfer.consumer
    if made is None or used is None or transfer.name[0] not in "0123456789" or used.start < made.start:
        return []
    common = {"name": transfer.name, "cat": "flow", "id": _arrow_id(transfer)}
    inside = max(tracks.us(made.start), tracks.us(made.end) - 1)
    return [
        common | {"ph": "s", "ts": inside} | tracks.place(transfer.sender),
        common | {"ph": "f", "bp": "e", "ts": tracks.us(used.start)} | tracks.place(transfer.receiver),
    ]


def _arrow_id(transfer: Transfer) -> str:
    return f"{transfer.step}.{transfer.name}.{transfer.sender}.{transfer.receiver}.{transfer.arrived_at:.6f}"


def _lanes(found: Timeline, tracks: _Tracks) -> Iterator[TraceEvent]:
    """Slots of one thread must not overlap, and transfers do: each goes to the first lane that is free."""
    by_receiver: dict[WorkerId, list[tuple[int, int, Transfer]]] = defaultdict(list)
    for transfer in found.transfers:
        arrived = tracks.us(transfer.arrived_at)
        sent = tracks.us(transfer.producer.end) if transfer.producer else arrived
        by_receiver[transfer.receiver].append((min(sent, arrived), arrived, transfer))
    for receiver, transfers in by_receiver.items():
        ordered = sorted(transfers, key=lambda each: each[:2])
        for lane, (sent, arrived, transfer) in zip(_free_lanes(ordered), ordered, strict=True):
            place = tracks.place(receiver) | {"tid": tracks.lane(receiver, lane)}
            args = {"from": transfer.sender, "step": transfer.step}
            yield _complete(f"{transfer.name} ← {transfer.sender}", "transfer", sent, arrived, place, args)


def _free_lanes(ordered: Sequence[tuple[int, int, Transfer]]) -> Iterable[int]:
    busy_until: list[int] = []
    for start, end, _ in ordered:
        lane = next((i for i, until in enumerate(busy_until) if until <= start), len(busy_until))
        busy_until[lane : lane + 1] = [end]
        yield lane
