"""How likely a plan is to lose a layer for good: all who hold it, before any of them is replaced. Pure.

Nodes are taken independently of each other at ``hazard`` per node and hour, and a loss is made good after ``window_s``.
That one of n holders goes while the n - 1 others are gone has the rate n h (h w)^(n-1), for small h w. Clouds take
nodes in bursts, mostly of one zone (half of the minutes with a preemption in the paper's p3 trace had several), so this
is a lower bound; ``zones_that_matter`` says which zone alone could do it.
"""

from collections.abc import Mapping

from bamboo_trainer.plan import NodeId, Plan, WorkerId


def fatal_per_hour(plan: Plan, hazard: float, window_s: float) -> float:
    """Expected times an hour that some layer loses all its holders. ``hazard``: losses per node and hour."""
    nodes = {member.worker_id: member.node_id for member in plan.members}
    groups = {_holders(plan, layer, nodes) for layer in range(plan.num_layers)}
    window_h = window_s / 3600.0
    return sum(len(group) * hazard * (hazard * window_h) ** (len(group) - 1) for group in groups)


def zones_that_matter(plan: Plan, zones: Mapping[NodeId, str]) -> tuple[str, ...]:
    """Zones whose loss, all at once, would leave some layer without a holder."""
    nodes = {member.worker_id: member.node_id for member in plan.members}
    found = set()
    for layer in range(plan.num_layers):
        where = {zones[node_id] for node_id in _holders(plan, layer, nodes)}
        if len(where) == 1:
            found |= where
    return tuple(sorted(found))


def _holders(plan: Plan, layer: int, nodes: Mapping[WorkerId, NodeId]) -> frozenset[NodeId]:
    return frozenset(nodes[worker_id] for worker_id in plan.holders_of(layer))
