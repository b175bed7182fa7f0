"""An arrangement on paper: the node of each stage, and the plan, before there is anybody to place. Pure."""

import math
from collections.abc import Mapping
from functools import lru_cache

from bamboo_trainer.arrangement import Arrangement, staff
from bamboo_trainer.placement import apart, spread
from bamboo_trainer.plan import Member, NodeId, Plan, PlanKind, WorkerId

Place = tuple[int, int]
"""Pipeline and stage."""


@lru_cache(maxsize=256)
def homes_of(arrangement: Arrangement, num_accelerators: int = 1, num_standbys: int = 0) -> dict[Place, NodeId]:
    """The node of each stage, by pipeline and stage, on as few nodes as have room for all workers."""
    places = [(d, s) for d, cut in enumerate(arrangement.cuts) for s in range(len(cut))]
    if num_accelerators == 1:
        return {(d, s): NodeId(f"{d}.{s}") for d, s in places}
    num_nodes = math.ceil((len(places) + max(0, num_standbys)) / num_accelerators)
    return dict(zip(places, spread(arrangement, num_nodes, num_accelerators), strict=True))


def by_node(homes: Mapping[Place, NodeId]) -> list[list[Place]]:
    found: dict[NodeId, list[Place]] = {}
    for place, node_id in homes.items():
        found.setdefault(node_id, []).append(place)
    return list(found.values())


@lru_cache(maxsize=256)
def on_paper(arrangement: Arrangement, num_accelerators: int = 1, num_standbys: int = 0) -> Plan:
    """With a worker for each stage, on nodes that have so many each."""
    homes = homes_of(arrangement, num_accelerators, num_standbys)
    rows = [[WorkerId(f"{d}.{s}") for s in range(len(cut))] for d, cut in enumerate(arrangement.cuts)]
    node = {rows[d][s]: node_id for (d, s), node_id in homes.items()}
    return Plan(
        generation=0,
        kind=PlanKind.BOUNDARY,
        first_step=0,
        pipelines=apart(staff(arrangement, rows), node),
        members=tuple(Member(worker_id=w, node_id=node[w], address="", port=0) for row in rows for w in row),
    )
