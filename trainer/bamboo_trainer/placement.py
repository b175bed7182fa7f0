"""Who runs which stage of an arrangement, decided purely.

In this order: no stage and its shadow on one node; workers stay on layers that they hold, so the fewest bytes travel;
neighbours of a pipeline sit on different nodes, and in different zones.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from bamboo_trainer.arrangement import Arrangement
from bamboo_trainer.plan import NodeId, Pipeline, WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A prepared worker; several may sit on one node. ``layers``: those that it holds as they are after step
    ``first_step - 1``."""

    worker_id: WorkerId
    node_id: NodeId
    zone: str
    address: str
    port: int
    layers: frozenset[int] = frozenset()
    learned: frozenset[int] = frozenset()
    """Layers that it most likely follows: reason enough to place it there, but not to leave out its fetches."""
    leaving: bool = False
    """Gets no stage; may still be asked for layers."""


Cost = tuple[int, int, int, int]
"""Shadows on the node of their stage; bytes at hand, negative; neighbours on one node; neighbours in one zone."""


@dataclass(frozen=True, slots=True)
class _Slot:
    """A stage to be hosted. ``layers``: what its worker holds, shadowed stages included. ``watched``: slots of the
    stages that it shadows; ``before``: the slot of its predecessor, the ends wrap; itself, where it is alone."""

    layers: frozenset[int]
    watched: tuple[int, ...]
    before: int


def place(staying: Sequence[Candidate], arrangement: Arrangement, parameter_bytes: Sequence[int]) -> list[Candidate]:
    """A host for each stage, pipeline after pipeline: greedy by bytes at hand, then swaps while they help."""
    slots = list(_slots(arrangement))
    kinds = {slot.layers: number for number, slot in enumerate({slot.layers: slot for slot in slots}.values())}
    at_hand = {
        (c.worker_id, kind): sum(max(1, parameter_bytes[x]) for x in layers & (c.layers | c.learned))
        for c in staying
        for layers, kind in kinds.items()
    }
    gains = [{c.worker_id: at_hand[c.worker_id, kinds[slot.layers]] for c in staying} for slot in slots]
    order: list[Candidate | None] = [None] * len(slots)
    free = _dealt_out(staying)
    by_gain = sorted(
        ((c, i) for c in free for i in range(len(slots)) if gains[i][c.worker_id]),
        key=lambda x: -gains[x[1]][x[0].worker_id],
    )
    for candidate, index in by_gain:
        if order[index] is None and candidate in free:
            order[index] = candidate
            free.remove(candidate)
    rest = iter(free)
    row = [next(rest) if c is None else c for c in order] + list(rest)
    return _improve(row, slots, gains)[: len(slots)]


def _slots(arrangement: Arrangement) -> Iterator[_Slot]:
    start = 0
    for d, cut in enumerate(arrangement.cuts):
        for s, layers in enumerate(cut):
            watched = arrangement.shadowed_by(d, s)
            held = {x for other in watched for x in cut[other]} | set(layers)
            yield _Slot(frozenset(held), tuple(start + other for other in watched), start + (s - 1) % len(cut))
        start += len(cut)


def _dealt_out(staying: Sequence[Candidate]) -> list[Candidate]:
    """The first worker of each node, then the second of each, and so on: neighbours in this order share no node."""
    by_node: dict[NodeId, list[Candidate]] = {}
    for candidate in staying:
        by_node.setdefault(candidate.node_id, []).append(candidate)
    rounds = range(max(map(len, by_node.values())))
    return [workers[i] for i in rounds for workers in by_node.values() if i < len(workers)]


def _improve(row: list[Candidate], slots: Sequence[_Slot], gains: Sequence[dict[WorkerId, int]]) -> list[Candidate]:
    """Hill climbing by swaps. ``row``: the hosts in slot order, then the standbys."""
    touching = [_touched(i, slots) for i in range(len(slots))]

    def cost(i: int, j: int) -> Cost:
        """Of all that the candidates at i and j have a part in."""
        near = touching[i] | touching[j] if j < len(slots) else touching[i]
        parts = [_cost_at(index, row, slots, gains) for index in near]
        a, b, c, d = (sum(part[k] for part in parts) for k in range(4))
        return a, b, c, d

    improved = True
    while improved:
        improved = False
        for i, j in combinations(range(len(row)), 2):
            if i >= len(slots):
                break
            before = cost(i, j)
            row[i], row[j] = row[j], row[i]
            if cost(i, j) < before:
                improved = True
            else:
                row[i], row[j] = row[j], row[i]
    return row


def _touched(index: int, slots: Sequence[_Slot]) -> frozenset[int]:
    """The slots whose cost changes with who sits at ``index``."""
    watchers = {i for i, slot in enumerate(slots) if index in slot.watched}
    followers = {i for i, slot in enumerate(slots) if slot.before == index}
    return frozenset({index} | watchers | followers)


def _cost_at(
    index: int, row: Sequence[Candidate], slots: Sequence[_Slot], gains: Sequence[dict[WorkerId, int]]
) -> Cost:
    slot, host = slots[index], row[index]
    before = row[slot.before] if slot.before != index else None
    return (
        sum(row[watched].node_id == host.node_id for watched in slot.watched),
        -gains[index][host.worker_id],
        int(before is not None and before.node_id == host.node_id),
        int(before is not None and before.zone == host.zone),
    )


def apart(pipelines: Sequence[Pipeline], hosts: Sequence[Candidate]) -> tuple[Pipeline, ...]:
    """Without the shadows that sit on the node of their own stage: they would go with it."""
    node = {c.worker_id: c.node_id for c in hosts}
    return tuple(
        replace(
            p,
            stages=tuple(replace(s, shadows=tuple(w for w in s.shadows if node[w] != node[s.host])) for s in p.stages),
        )
        for p in pipelines
    )
