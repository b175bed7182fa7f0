"""The plan for a step boundary, decided purely: how many pipelines and stages, who runs what, who fetches what.

Rules, in this order. Keep the number of pipelines, since the final bits depend on it, as long as every pipeline can
have two workers (one, where nothing is shadowed). Then as many stages as there are workers for. Workers stay on layers
that they hold, so the fewest bytes travel; where that leaves a choice, neighbours of a pipeline sit in different zones.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from bamboo_trainer.bubbles import with_slots
from bamboo_trainer.dryrun import Durations
from bamboo_trainer.partition import cut
from bamboo_trainer.plan import (
    Fetch,
    Member,
    Mode,
    NodeId,
    Pipeline,
    Plan,
    PlanKind,
    StagePlan,
    StepSummary,
    WorkerId,
    split_microbatches,
)
from bamboo_trainer.redundancy import shadow_indices


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A prepared worker. ``layers``: those that it holds as they are after step ``first_step - 1``."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the run asks for, and what was measured of it."""

    num_pipelines: int
    num_stages: int
    mode: Mode
    level: int = 1
    """How many shadows a stage has: so many consecutive losses are survived in place."""
    num_microbatches: int
    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    """Per layer and microbatch."""
    parameter_bytes: tuple[int, ...]
    """Per layer."""

    @property
    def num_layers(self) -> int:
        return len(self.forward_s)

    @property
    def costs_s(self) -> tuple[float, ...]:
        return tuple(f + b for f, b in zip(self.forward_s, self.backward_s, strict=True))

    @property
    def is_redundant(self) -> bool:
        """A shadow sits on the preceding stage, so it takes two stages to have one."""
        return self.mode.has_shadows and min(self.num_stages, self.num_layers) >= 2

    @property
    def is_protected(self) -> bool:
        """A single loss leaves every layer on a live worker."""
        return self.is_redundant or (self.mode.survives_within_step and self.num_pipelines >= 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    num_pipelines: int
    num_stages: int

    @property
    def num_hosts(self) -> int:
        return self.num_pipelines * self.num_stages


def choose_shape(num_workers: int, wanted: Wanted) -> Shape:
    """Raises ValueError when there is no worker."""
    if num_workers < 1:
        raise ValueError("no worker to plan with")
    feedable = num_workers // 2 if wanted.is_redundant and num_workers >= 2 else num_workers
    num_pipelines = min(wanted.num_pipelines, feedable, wanted.num_microbatches)
    num_stages = min(wanted.num_stages, num_workers // num_pipelines, wanted.num_layers)
    return Shape(num_pipelines=num_pipelines, num_stages=num_stages)


def plan_boundary(
    *,
    generation: int,
    first_step: int,
    candidates: Sequence[Candidate],
    wanted: Wanted,
    checkpoint_step: int | None = None,
    roll_forward: StepSummary | None = None,
    reason: str = "",
) -> Plan:
    """The plan from ``first_step`` on. Layers that no candidate holds come from ``checkpoint_step``, or from the seed.

    One candidate a node; those that are leaving get no stage. Raises ValueError when all are leaving.
    """
    staying = [c for c in candidates if not c.leaving]
    shape = choose_shape(len(staying), wanted)
    layers = cut(wanted.costs_s, shape.num_stages)
    hosts = _place(staying, shape, layers, wanted.parameter_bytes, wanted.level if wanted.is_redundant else 0)
    names = [c.worker_id for c in hosts]
    rows = [names[i : i + shape.num_stages] for i in range(0, len(names), shape.num_stages)]
    pipelines = build_pipelines(
        rows, [layers] * len(rows), wanted.num_microbatches, wanted.mode, wanted.level if wanted.is_redundant else 0
    )
    fetches = _fetches(pipelines, hosts, candidates)
    sources = {fetch.source for fetch in fetches}
    members = hosts + [c for c in candidates if c.worker_id in sources and c not in hosts]
    plan = Plan(
        generation=generation,
        kind=PlanKind.BOUNDARY,
        first_step=first_step,
        pipelines=pipelines,
        members=tuple(
            Member(worker_id=c.worker_id, node_id=c.node_id, address=c.address, port=c.port) for c in members
        ),
        fetches=fetches,
        checkpoint_step=checkpoint_step,
        roll_forward=roll_forward,
        reason=_explain(shape, len(staying), wanted, fetches, reason),
    )
    return with_slots(plan, Durations(forward=wanted.forward_s, backward=wanted.backward_s))


def _place(
    staying: list[Candidate], shape: Shape, layers: Sequence[range], parameter_bytes: Sequence[int], level: int
) -> list[Candidate]:
    """A host for each stage, pipeline after pipeline: greedy by bytes at hand, then swaps while they help."""
    slots = [_layers_at(index % shape.num_stages, layers, level) for index in range(shape.num_hosts)]
    at_hand = {
        (c.worker_id, s): sum(max(1, parameter_bytes[x]) for x in _layers_at(s, layers, level) & (c.layers | c.learned))
        for c in staying
        for s in range(shape.num_stages)
    }
    order: list[Candidate | None] = [None] * len(slots)
    free = list(staying)
    by_gain = sorted(
        ((c, i) for c in staying for i in range(len(slots))), key=lambda x: -at_hand[x[0].worker_id, x[1] % len(layers)]
    )
    for candidate, index in by_gain:
        if order[index] is None and candidate in free:
            order[index] = candidate
            free.remove(candidate)
    row = [c for c in order if c is not None] + free
    return _improve(row, len(slots), shape.num_stages, at_hand)[: len(slots)]


def _improve(
    row: list[Candidate], num_slots: int, num_stages: int, at_hand: dict[tuple[WorkerId, int], int]
) -> list[Candidate]:
    """Hill climbing by swaps. ``row``: the hosts in slot order, then the standbys."""

    def cost(places: list[Candidate]) -> tuple[int, int]:
        gained = sum(at_hand[places[i].worker_id, i % num_stages] for i in range(num_slots))
        return -gained, _shared_zones(places[:num_slots], num_stages)

    best = cost(row)
    improved = True
    while improved:
        improved = False
        for i, j in combinations(range(len(row)), 2):
            if i >= num_slots:
                break
            row[i], row[j] = row[j], row[i]
            found = cost(row)
            if found < best:
                best, improved = found, True
            else:
                row[i], row[j] = row[j], row[i]
    return row


def _layers_at(stage_index: int, layers: Sequence[range], level: int) -> frozenset[int]:
    """What the host of the stage holds: its own layers, and those of its successors that it shadows."""
    num_stages = len(layers)
    shadowed = [x for s in range(num_stages) if stage_index in shadow_indices(s, num_stages, level) for x in layers[s]]
    return frozenset(layers[stage_index]) | frozenset(shadowed)


def _shared_zones(hosts: Sequence[Candidate], num_stages: int) -> int:
    """Pairs of neighbours in a pipeline, the ends included, that sit in one zone."""
    pairs = 0
    for start in range(0, len(hosts), num_stages):
        zones = [c.zone for c in hosts[start : start + num_stages]]
        pairs += sum(zones[s] == zones[s - 1] for s in range(num_stages)) if num_stages > 1 else 0
    return pairs


def build_pipelines(
    rows: Sequence[Sequence[WorkerId]], cuts: Sequence[Sequence[range]], num_microbatches: int, mode: Mode, level: int
) -> tuple[Pipeline, ...]:
    """``rows``: the host of each stage, by pipeline; ``cuts``: the layers of each. A mode without shadows has none."""
    pipelines = []
    for d, microbatches in enumerate(split_microbatches(num_microbatches, len(rows))):
        row = rows[d]
        stages = tuple(
            StagePlan(
                pipeline_index=d,
                stage_index=s,
                first_layer=layers.start,
                end_layer=layers.stop,
                host=row[s],
                shadows=tuple(row[i] for i in shadow_indices(s, len(row), level)) if mode.has_shadows else (),
                mode=mode,
            )
            for s, layers in enumerate(cuts[d])
        )
        pipelines.append(Pipeline(first_microbatch=microbatches.start, end_microbatch=microbatches.stop, stages=stages))
    return tuple(pipelines)


def _fetches(
    pipelines: Sequence[Pipeline], hosts: Sequence[Candidate], candidates: Sequence[Candidate]
) -> tuple[Fetch, ...]:
    """From a member rather than a stranger, from the same zone rather than afar, from whoever has been asked least."""
    asked: Counter[WorkerId] = Counter()
    fetches = []
    for worker in hosts:
        stages = [s for p in pipelines for s in p.stages if worker.worker_id in s.holders]
        for layer in sorted({x for stage in stages for x in stage.layers} - worker.layers):
            holders = [c for c in candidates if layer in c.layers]
            rank = {
                c.worker_id: (c not in hosts, c.leaving, c.zone != worker.zone, asked[c.worker_id]) for c in holders
            }
            source = min(rank, key=lambda w: (rank[w], w), default=None)
            if source is not None:
                asked[source] += 1
            fetches.append(Fetch(worker_id=worker.worker_id, layer=layer, source=source))
    return tuple(fetches)


def _explain(shape: Shape, num_workers: int, wanted: Wanted, fetches: Sequence[Fetch], reason: str) -> str:
    spare = num_workers - shape.num_hosts
    moved = len({fetch.layer for fetch in fetches if fetch.source is not None})
    text = f"{_count(num_workers, 'worker')} for {shape.num_pipelines} x {shape.num_stages} stages"
    if (shape.num_pipelines, shape.num_stages) != (wanted.num_pipelines, wanted.num_stages):
        text += f" ({wanted.num_pipelines} x {wanted.num_stages} wanted)"
    if spare:
        text += f", {_count(spare, 'standby')}"
    if moved:
        text += f", {_count(moved, 'layer')} on the move"
    return f"{reason}; {text}" if reason else text


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
