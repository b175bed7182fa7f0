"""How likely a plan is to lose a layer for good: all who hold it, before any of them is replaced. Pure.

Nodes are taken independently of each other at ``hazard`` per node and hour, and a loss is made good after ``window_s``.
That one of n holders goes while the n - 1 others are gone has the rate n h (h w)^(n-1), for small h w. Clouds take
nodes in bursts, mostly of one zone (half of the minutes with a preemption in the paper's p3 trace had several), so this
is a lower bound; ``zones_that_matter`` says which zone alone could do it. A node goes with all its workers.
"""

from collections.abc import Mapping

from bamboo_trainer.plan import NodeId, Plan


def fatal_per_hour(plan: Plan, hazard: float, window_s: float) -> float:
    """Expected times an hour that some layer loses all its holders. ``hazard``: losses per node and hour."""
    window_h = window_s / 3600.0
    return sum(len(group) * hazard * (hazard * window_h) ** (len(group) - 1) for group in set(_groups(plan)))


def losses_survived(plan: Plan) -> int:
    """Nodes that may be lost at once, whichever they are, and leave each layer a holder."""
    return min(map(len, _groups(plan))) - 1


def lone_layers(plan: Plan) -> int:
    """Layers that go with a single node."""
    return sum(len(group) == 1 for group in _groups(plan))


def zones_that_matter(plan: Plan, zones: Mapping[NodeId, str]) -> tuple[str, ...]:
    """Zones whose loss, all at once, would leave some layer without a holder."""
    where = [{zones[node_id] for node_id in group} for group in _groups(plan)]
    return tuple(sorted({zone for found in where if len(found) == 1 for zone in found}))


def _groups(plan: Plan) -> list[frozenset[NodeId]]:
    """By layer, the nodes of its holders."""
    nodes = {member.worker_id: member.node_id for member in plan.members}
    return [frozenset(nodes[w] for w in plan.holders_of(layer)) for layer in range(plan.num_layers)]
