"""Who runs which stage of an arrangement, decided purely. A node's workers are lost together.

In this order: no layer with all its holders on one node; no stage and its shadow on one node; workers stay on layers
that they hold, so the fewest bytes travel; neighbours of a pipeline sit on different nodes, and in different zones.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from bamboo_trainer.arrangement import Arrangement
from bamboo_trainer.plan import Mode, NodeId, Pipeline, StagePlan, WorkerId


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


Cost = tuple[int, int, int, int, int]
"""Layers that one node holds alone, where others could; holders of a stage that share a node; bytes at hand, negative;
neighbours on one node; neighbours in one zone."""
Row = list[Candidate]
"""The hosts in slot order, then the standbys."""


@dataclass(frozen=True, slots=True)
class _Slot:
    """A stage to be hosted. ``layers``: what its worker holds, shadowed stages included. ``holders``: slots whose
    workers hold the stage, its own first; ``before``: that of its predecessor, the ends wrap; itself, where alone."""

    layers: frozenset[int]
    holders: tuple[int, ...]
    before: int


@dataclass(frozen=True)
class _Slots:
    """Of an arrangement, pipeline after pipeline."""

    slots: tuple[_Slot, ...]
    groups: dict[frozenset[int], int]
    """The slots that hold a layer, in whichever pipeline, where there are several; and how many such layers."""

    @cached_property
    def groups_of(self) -> list[list[frozenset[int]]]:
        """By slot."""
        return [[group for group in self.groups if i in group] for i in range(len(self.slots))]

    @cached_property
    def partners(self) -> list[frozenset[int]]:
        """By slot, those that hold a stage together with it."""
        return [
            frozenset(x for slot in self.slots if i in slot.holders for x in slot.holders) - {i}
            for i in range(len(self.slots))
        ]

    @cached_property
    def touched(self) -> list[frozenset[int]]:
        """By slot, those whose cost changes with who sits there."""
        return [
            frozenset(n for n, slot in enumerate(self.slots) if i in (*slot.holders, slot.before))
            for i in range(len(self.slots))
        ]


def place(staying: Sequence[Candidate], arrangement: Arrangement, parameter_bytes: Sequence[int]) -> list[Candidate]:
    """A host for each stage, pipeline after pipeline: greedy by bytes at hand, then swaps while they help."""
    slots = _slots_of(arrangement)
    kinds = {slot.layers: number for number, slot in enumerate({slot.layers: slot for slot in slots.slots}.values())}
    at_hand = {
        (c.worker_id, kind): sum(max(1, parameter_bytes[x]) for x in layers & (c.layers | c.learned))
        for c in staying
        for layers, kind in kinds.items()
    }
    gains = [{c.worker_id: at_hand[c.worker_id, kinds[slot.layers]] for c in staying} for slot in slots.slots]
    order: list[Candidate | None] = [None] * len(gains)
    free = _dealt_out(staying)
    by_gain = sorted(
        ((c, i) for c in free for i in range(len(gains)) if gains[i][c.worker_id]),
        key=lambda x: -gains[x[1]][x[0].worker_id],
    )
    for candidate, index in by_gain:
        if order[index] is None and candidate in free:
            order[index] = candidate
            free.remove(candidate)
    return _improve(_fill(order, free, slots), slots, gains, range(len(gains)))[: len(gains)]


def spread(arrangement: Arrangement, num_nodes: int, num_accelerators: int) -> list[NodeId]:
    """The node of each stage, pipeline after pipeline, where nobody holds anything yet: near what ``place`` would do,
    and quick enough to be asked of every arrangement that is looked at."""
    crowd = [
        Candidate(worker_id=WorkerId(f"{n}/{k}"), node_id=NodeId(str(n)), zone="", address="", port=0)
        for n in range(num_nodes)
        for k in range(num_accelerators)
    ]
    slots = _slots_of(arrangement)
    row = _fill([None] * len(slots.slots), _dealt_out(crowd), slots)
    nobody_holds = dict.fromkeys((c.worker_id for c in crowd), 0)
    row = _improve(row, slots, [nobody_holds] * len(slots.slots), _in_conflict(row, slots))
    return [candidate.node_id for candidate in row[: len(slots.slots)]]


def _slots_of(arrangement: Arrangement) -> _Slots:
    slots = tuple(_each_slot(arrangement))
    holding: dict[int, set[int]] = {}
    for i, slot in enumerate(slots):
        for layer in slot.layers:
            holding.setdefault(layer, set()).add(i)
    return _Slots(slots, Counter(frozenset(group) for group in holding.values() if len(group) > 1))


def _each_slot(arrangement: Arrangement) -> Iterator[_Slot]:
    start = 0
    for d, cut in enumerate(arrangement.cuts):
        for s, layers in enumerate(cut):
            held = {x for other in arrangement.shadowed_by(d, s) for x in cut[other]} | set(layers)
            holders = (start + s, *(start + other for other in arrangement.shadow_indices(d, s)))
            yield _Slot(frozenset(held), holders, start + (s - 1) % len(cut))
        start += len(cut)


def _dealt_out(staying: Sequence[Candidate]) -> Row:
    """The first worker of each node, then the second of each, and so on: neighbours in this order share no node."""
    by_node: dict[NodeId, list[Candidate]] = {}
    for candidate in staying:
        by_node.setdefault(candidate.node_id, []).append(candidate)
    rounds = range(max(map(len, by_node.values())))
    return [workers[i] for i in rounds for workers in by_node.values() if i < len(workers)]


def _fill(order: list[Candidate | None], free: Row, slots: _Slots) -> Row:
    """Each empty slot gets the first free worker on the node that has the fewest of its partners, then of those that
    hold its layers in other pipelines."""
    row, free = list(order), list(free)
    for index, host in enumerate(row):
        if host is None:
            partners = _on_node(row, slots.partners[index])
            group = _on_node(row, frozenset().union(*slots.groups_of[index]))
            best = min(free, key=lambda c: (partners[c.node_id], group[c.node_id]))
            row[index] = best
            free.remove(best)
    return [c for c in row if c is not None] + free


def _on_node(row: Sequence[Candidate | None], indices: frozenset[int]) -> Counter[NodeId]:
    return Counter(c.node_id for c in (row[i] for i in indices) if c is not None)


def _in_conflict(row: Row, slots: _Slots) -> list[int]:
    together = [*slots.groups, *(frozenset(slot.holders) for slot in slots.slots)]
    lone = [group for group in together if len(group) > 1 and len({row[i].node_id for i in group}) == 1]
    return sorted(frozenset().union(*lone))


def _improve(row: Row, slots: _Slots, gains: Sequence[dict[WorkerId, int]], movable: Sequence[int]) -> Row:
    """Hill climbing by swaps of those at ``movable`` with any others."""
    num_slots = len(gains)
    pairs = [(i, j) for i in movable for j in range(len(row)) if i < j or j not in movable]

    def cost(i: int, j: int) -> Cost:
        """Of all that the candidates at i and j have a part in."""
        near, groups = slots.touched[i], slots.groups_of[i]
        if j < num_slots:
            near, groups = near | slots.touched[j], groups + [g for g in slots.groups_of[j] if i not in g]
        parts = [_cost_at(index, row, slots.slots[index], gains[index]) for index in near]
        lone = sum(slots.groups[group] for group in groups if len({row[x].node_id for x in group}) == 1)
        a, b, c, d = (sum(part[k] for part in parts) for k in range(4))
        return lone, a, b, c, d

    improved = True
    while improved:
        improved = False
        for i, j in pairs:
            before = cost(i, j)
            row[i], row[j] = row[j], row[i]
            if cost(i, j) < before:
                improved = True
            else:
                row[i], row[j] = row[j], row[i]
    return row


def _cost_at(index: int, row: Row, slot: _Slot, gain: dict[WorkerId, int]) -> tuple[int, int, int, int]:
    host = row[index]
    before = row[slot.before] if slot.before != index else None
    return (
        len(slot.holders) - len({row[i].node_id for i in slot.holders}),
        -gain[host.worker_id],
        int(before is not None and before.node_id == host.node_id),
        int(before is not None and before.zone == host.zone),
    )


def apart(pipelines: Sequence[Pipeline], node: Mapping[WorkerId, NodeId]) -> tuple[Pipeline, ...]:
    """Without the shadows that sit on the node of their own stage: they would go with it."""
    return tuple(
        replace(pipeline, stages=tuple(_kept(pipeline, stage, node) for stage in pipeline.stages))
        for pipeline in pipelines
    )


def _kept(pipeline: Pipeline, stage: StagePlan, node: Mapping[WorkerId, NodeId]) -> StagePlan:
    """A farther shadow computes on what it made of the stage before, so it needs to shadow that too where it has to
    compute in every step. Otherwise it gets the inputs sent if a loss needs them."""
    shadows = tuple(w for w in stage.shadows if node[w] != node[stage.host])
    if stage.mode in (Mode.EAGER, Mode.FULL) and stage.stage_index > 0:
        before = pipeline.stages[stage.stage_index - 1]
        made = (before.host, *(w for w in before.shadows if node[w] != node[before.host]))
        shadows = tuple(w for w in shadows if w in made)
    return replace(stage, shadows=shadows)
