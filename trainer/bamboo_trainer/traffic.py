"""How much one undisturbed step sends from worker to worker, by a plan and measured layers. Pure; docs/money.md.

Tensors alone: frames' heads, beats and what moves when plans change are less than a hundredth of it in any real job.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from bamboo_trainer.control import LayerCost
from bamboo_trainer.plan import Mode, Plan, WorkerId


def step_traffic(plan: Plan, costs: Sequence[LayerCost]) -> Counter[tuple[WorkerId, WorkerId]]:
    """Bytes, by sender and receiver. ``costs``: by layer. Tied layers count once each."""
    sent: Counter[tuple[WorkerId, WorkerId]] = Counter()
    for pipeline in plan.pipelines:
        for stage, after in pairwise(pipeline.stages):
            num_bytes = costs[stage.layers[-1]].activation_bytes * len(pipeline.microbatches)
            sent[stage.host, after.host] += num_bytes
            for holder in stage.holders if stage.mode is Mode.FULL else (stage.host,):
                sent[after.host, holder] += num_bytes
    shares: Counter[tuple[tuple[WorkerId, ...], tuple[WorkerId, ...]]] = Counter()
    for layer in range(plan.num_layers):
        hosts = tuple(plan.stage_of_layer(d, layer).host for d in range(plan.num_pipelines))
        shares[hosts, plan.holders_of(layer)] += costs[layer].parameter_bytes // len(hosts)
    for (hosts, holders), num_bytes in shares.items():
        for reducer in hosts:  # each of its share
            for host in hosts:
                sent[host, reducer] += num_bytes
            for holder in holders:
                sent[reducer, holder] += num_bytes
    return Counter({ends: n for ends, n in sent.items() if ends[0] != ends[1]})
