"""Claim: 16 nodes are up in at most 1.5 times the time of one: nothing of ours takes them one after the other.

``bamboo up`` on EC2's double (tests/aws): a machine with its own sshd behind each instance. What a machine works on for
itself (environment, pip, torch) takes emulated time, see ``emulated_install.py``; all else is real: the command, the
coordinator, its calls to EC2, SSH connections, files, steps, forwards, the state file, agents and their links.

    python -m benchmarks.up_scaling [--nodes 16] [--rounds 3] [--real 1]

Needs what the tests with machines need: root, openssh-server, iproute2, nftables, sudo.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from bamboo_cli.coordinator.status import StoryEvent
from benchmarks import emulated_install
from benchmarks.fleet import claim, finish
from tests.aws import isolated
from tests.aws.double import AwsDouble
from tests.aws.product import REGION, AwsBamboo
from tests.aws.vm.virtual import Rack

LIMIT = 1.5
PENDING_S = 3.0
"""Between RunInstances and ``running``."""
QUOTA, VCPUS = "L-3819A6DF", 4096.0
"""Enough for all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Up:
    """One ``bamboo up``, in seconds from the command, until the last node has joined."""

    all_s: float
    begun_s: float
    """Until the coordinator runs: the recipe has been tried by then."""
    slowest_s: float
    """The longest that a node took, from its being rented to its joining."""
    steps_s: dict[str, tuple[float, float]]
    """When the first and the last node came to each."""

    @property
    def own_s(self) -> float:
        return self.all_s - self.begun_s


def up(aws: AwsDouble, rack: Rack, num_nodes: int, programs: dict[str, str]) -> Up:
    """``programs``: of the machines, in place of theirs. Raises RuntimeError when a node does not join at the first
    try, or anything is left after ``bamboo down``."""
    aws.reset()
    aws.account.quotas[(REGION, QUOTA)] = VCPUS
    aws.account.pending_s = PENDING_S
    rack.programs = programs
    with tempfile.TemporaryDirectory(prefix="bamboo-bench-") as folder:
        bamboo = AwsBamboo(folder=Path(folder), aws=aws, environment=aws.environment)
        try:
            job = bamboo.job(nodes=num_nodes, stages=1)
            begun = time.time()
            done = bamboo.call("up", job, "--yes")
            story, events = bamboo.story(), bamboo.events()
            down = bamboo.call("down", "--yes", "--now")
        finally:
            bamboo.end_everything()
    if done.exit_code or down.exit_code or aws.remains():
        raise RuntimeError(f"{done.stderr}\n{down.stderr}\n{story}\n{aws.remains()}")
    found = _read(events, begun)
    if len(found) != num_nodes:
        raise RuntimeError(f"{len(found)} nodes were rented for {num_nodes}:\n{story}")
    return _summed(found, events[0].at - begun)


def _read(events: Sequence[StoryEvent], begun: float) -> dict[str, dict[str, float]]:
    """By node, when it came to each step. Every node that was ever rented is there."""
    found: dict[str, dict[str, float]] = {}
    for event in events:
        if event.kind == "node" and event.node_id is not None:
            step = event.text.removeprefix(f"{event.node_id}: ")
            step = next((word for word in ("rented", "joined") if f" {word} " in step), step)
            found.setdefault(event.node_id, {}).setdefault(step, event.at - begun)
    return found


def _summed(found: dict[str, dict[str, float]], begun_s: float) -> Up:
    """Raises KeyError for a node that never joined."""
    by_step = {step: [of_node[step] for of_node in found.values()] for step in next(iter(found.values()))}
    return Up(
        all_s=max(by_step["joined"]),
        begun_s=begun_s,
        slowest_s=max(of_node["joined"] - of_node["rented"] for of_node in found.values()),
        steps_s={step: (round(min(at), 2), round(max(at), 2)) for step, at in by_step.items()},
    )


def rounds(aws: AwsDouble, rack: Rack, num_nodes: int, count: int, programs: dict[str, str]) -> list[tuple[Up, Up]]:
    """One node, then all, in turns."""
    found = []
    for _ in range(count):
        one, many = up(aws, rack, 1, programs), up(aws, rack, num_nodes, programs)
        print(
            f"one {one.all_s:.1f} s, {one.own_s:.1f} of it after the job was agreed on; {num_nodes}: {many.all_s:.1f} "
            f"and {many.own_s:.1f} s; ratios {many.all_s / one.all_s:.2f}, {many.own_s / one.own_s:.2f}",
            file=sys.stderr,
        )
        found.append((one, many))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--real", type=int, default=1, help="rounds in which machines install for real")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="machines-") as folder:
        rack = Rack(folder=Path(folder))
        rack.open()
        aws = AwsDouble(machines=rack)
        try:
            emulated = rounds(
                aws, rack, arguments.nodes, arguments.rounds, {emulated_install.PLACE: emulated_install.python()}
            )
            real = rounds(aws, rack, arguments.nodes, arguments.real, {})
        finally:
            aws.close()
            rack.dispose()
    name = f"{arguments.nodes} nodes up / one node up"
    return finish(
        "up_scaling",
        [
            claim(f"{name}, from the command", median(many.all_s / one.all_s for one, many in emulated), LIMIT),
            claim(f"{name}, from the coordinator's start", median(m.own_s / o.own_s for o, m in emulated), LIMIT),
        ],
        figures={
            "installed_s": emulated_install.TOTAL_S,
            "emulated": [{"one": asdict(one), "all": asdict(many)} for one, many in emulated],
            "real": [{"one": asdict(one), "all": asdict(many)} for one, many in real],
        },
    )


if __name__ == "__main__":
    if not os.environ.get(isolated.MARK):
        isolated.main([sys.executable, "-m", "benchmarks.up_scaling", *sys.argv[1:]])
    sys.exit(main())
