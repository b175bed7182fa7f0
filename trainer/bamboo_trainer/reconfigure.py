"""The plan for a step boundary, decided purely: who runs what, who fetches what from whom.

What shape it has is ``planner``'s; where each stage goes is ``placement``'s.
"""

from collections import Counter
from collections.abc import Sequence

from bamboo_trainer.arrangement import Arrangement, staff
from bamboo_trainer.bubbles import with_slots
from bamboo_trainer.dryrun import Durations
from bamboo_trainer.placement import Candidate, apart, place
from bamboo_trainer.plan import Fetch, Member, Pipeline, Plan, PlanKind, StepSummary, WorkerId
from bamboo_trainer.planner import arrange, choose
from bamboo_trainer.wanted import Wanted


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

    Those that are leaving get no stage. A shadow that could only sit on its stage's own node is left out. Raises
    ValueError when all are leaving.
    """
    staying = [c for c in candidates if not c.leaving]
    arrangement = arrange(len(staying), wanted)
    hosts = place(staying, arrangement, [cost.parameter_bytes for cost in wanted.costs])
    names = iter([c.worker_id for c in hosts])
    rows = [[next(names) for _ in range(num_stages)] for num_stages in arrangement.num_stages]
    planned = staff(arrangement, rows)
    pipelines = apart(planned, {c.worker_id: c.node_id for c in hosts})
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
        reason=_explain(arrangement, len(staying), wanted, fetches, reason) + _left_out(planned, pipelines),
    )
    return with_slots(plan, Durations(forward=wanted.forward_s, backward=wanted.backward_s))


def _fetches(
    pipelines: Sequence[Pipeline], hosts: Sequence[Candidate], candidates: Sequence[Candidate]
) -> tuple[Fetch, ...]:
    """From a member rather than a stranger, from the same node, or else zone, rather than afar, from whoever has been
    asked least."""
    asked: Counter[WorkerId] = Counter()
    fetches = []
    for worker in hosts:
        stages = [s for p in pipelines for s in p.stages if worker.worker_id in s.holders]
        for layer in sorted({x for stage in stages for x in stage.layers} - worker.layers):
            holders = [c for c in candidates if layer in c.layers]
            rank = {
                c.worker_id: (
                    c not in hosts,
                    c.leaving,
                    (c.node_id != worker.node_id) + (c.zone != worker.zone),
                    asked[c.worker_id],
                )
                for c in holders
            }
            source = min(rank, key=lambda w: (rank[w], w), default=None)
            if source is not None:
                asked[source] += 1
            fetches.append(Fetch(worker_id=worker.worker_id, layer=layer, source=source))
    return tuple(fetches)


def _explain(arrangement: Arrangement, num_workers: int, wanted: Wanted, fetches: Sequence[Fetch], reason: str) -> str:
    spare = num_workers - arrangement.num_hosts
    moved = len({fetch.layer for fetch in fetches if fetch.source is not None})
    text = f"{_count(num_workers, 'worker')} for {arrangement.shape} stages"
    given = (wanted.num_pipelines or arrangement.num_pipelines, wanted.num_stages or arrangement.num_stages[0])
    if given != (arrangement.num_pipelines, arrangement.num_stages[0]):
        text += f" ({given[0]} x {given[1]} wanted)"
    if spare:
        text += f", {_count(spare, 'standby')}"
    if moved:
        text += f", {_count(moved, 'layer')} on the move"
    if wanted.is_auto:
        text += f"; {choose(num_workers, wanted).reason}"
    return f"{reason}; {text}" if reason else text


def _left_out(planned: Sequence[Pipeline], pipelines: Sequence[Pipeline]) -> str:
    """Of which stages a shadow could only sit on their own node."""
    before, after = ([s for p in found for s in p.stages] for found in (planned, pipelines))
    fewer = [s for s, kept in zip(before, after, strict=True) if len(kept.shadows) < len(s.shadows)]
    if not fewer:
        return ""
    names = ", ".join(f"{s.pipeline_index}.{s.stage_index}" for s in fewer)
    what = f"stage {names} lacks a shadow, which" if len(fewer) == 1 else f"stages {names} lack shadows, which"
    return f"; {what} could only sit on the stage's own node"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
