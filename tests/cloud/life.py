"""A short life that costs money: two spot instances train, one is taken after a notice, all are given back.

The same on EC2's double (tests/aws/test_life.py) as on a real account (test_renting.py).
"""

import json
from pathlib import Path
from typing import Any

import yaml

from bamboo_cli.errors import StateError
from tests.cluster import Bamboo

NAME = "account-life"
NODES = 2
VICTIM, REPLACEMENT = "n2", "n3"
VOLUME_GB = 20
GP3_USD_PER_GB_HOUR = 0.08 / 730
FIS_USD = 0.30
"""Three minutes of the Fault Injection Service's action, at $0.10 each."""
HOURS = 1.0
"""Longer than all deadlines together."""
UP_S, NOTICE_S, REPLACED_S, DOWN_S = 1200.0, 180.0, 900.0, 600.0
LINGER_MIN = 15.0
"""After which an instance without a coordinator ends itself."""
JOB: dict[str, Any] = {
    "name": NAME,
    "cloud": "aws",
    "recipe": "mlp",
    "recipe_options": {"sleep_forward_s": 0.04, "sleep_backward_s": 0.04},
    "stages": NODES,
    "nodes": NODES,
    "steps": 100_000,
    "global_batch_size": 16,
    "microbatch_size": 4,
}
"""A step takes about a second; it is ended, and never through."""


class TooDear(Exception):
    """Nothing was rented."""


def job(folder: Path, *, url: str, **aws: Any) -> Path:
    """``url``: for checkpoints."""
    wanted = {"volume_gb": VOLUME_GB, "orphan_after_min": LINGER_MIN, **aws}
    path = folder / f"{NAME}.yaml"
    path.write_text(yaml.safe_dump({**JOB, "checkpoint": {"url": url, "every": 20}, "aws": wanted}), encoding="utf-8")
    return path


def most_usd(rehearsed: dict[str, Any]) -> float:
    """By what ``bamboo up --dry-run`` says: the nodes, one in the place of that which is taken, and their volumes, at
    the dearest zone's price on demand, which spot never exceeds; and the notice. Raises TooDear for one unknown."""
    zones = rehearsed["zones"]
    if any("unknown" in zone["price_source"] for zone in zones):
        raise TooDear(f"what {zones[0]['instance_type']} costs on demand is not known")
    hourly = max(max(zone["spot_usd_per_hour"], zone["on_demand_usd_per_hour"]) for zone in zones)
    return float(FIS_USD + (rehearsed["num_nodes"] + 1) * HOURS * (hourly + VOLUME_GB * GP3_USD_PER_GB_HOUR))


def live(bamboo: Bamboo, job: Path, *, max_usd: float) -> str:
    """The cluster's id. Whatever happens, all is given back. Raises TooDear before anything is rented."""
    bamboo.cluster = NAME
    rehearsed = bamboo.call("up", job, "--dry-run", "--json", deadline_s=UP_S)
    assert rehearsed.exit_code == 0, rehearsed.stderr
    most = most_usd(json.loads(rehearsed.stdout))
    if most > max_usd:
        raise TooDear(f"it may cost ${most:.2f}, and ${max_usd:.2f} are allowed")
    try:
        up = bamboo.call("up", job, "--yes", deadline_s=UP_S)
        assert up.exit_code == 0, f"{up.stderr}\n{bamboo.story()}"
        train_through_a_notice(bamboo, job)
    finally:
        down = bamboo.call("down", "--yes", "--cluster", NAME, deadline_s=DOWN_S)
    assert down.exit_code == 0, f"{down.stderr}\n{bamboo.story()}"
    status = bamboo.status()
    assert status.run is not None
    assert (status.run.state, status.run.preemptions, status.run.steps_rerun) == ("stopped", 1, 0), bamboo.story()
    assert 0 < status.spot_microusd <= max_usd * 1e6
    return status.cluster_id


def train_through_a_notice(bamboo: Bamboo, job: Path) -> None:
    bamboo.begin("train", job, "--json")
    bamboo.until(lambda: bamboo.committed_steps() > 3, "some steps", UP_S)
    preempt = bamboo.call("preempt", VICTIM, "--yes", "--cluster", NAME)
    assert preempt.exit_code == 0, preempt.stderr
    bamboo.until(lambda: bamboo.events("notice"), "the notice to be seen on the machine", NOTICE_S)
    bamboo.until(lambda: _state(bamboo, VICTIM) == "ended", "the node to be taken", NOTICE_S)
    bamboo.until(lambda: _state(bamboo, REPLACEMENT) == "active", "another to train in its place", REPLACED_S)
    steps = bamboo.committed_steps()
    bamboo.until(lambda: bamboo.committed_steps() > steps + 3, "both to train on")


def _state(bamboo: Bamboo, node_id: str) -> str:
    try:
        return next((str(node.state) for node in bamboo.status().nodes if node.node_id == node_id), "")
    except StateError:
        return ""
