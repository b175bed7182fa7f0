"""The whole of Bamboo on EC2's double: the ``bamboo`` command, its coordinator, agents and workers on machines."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bamboo_cli.coordinator import lock
from bamboo_cli.errors import StateError
from tests import paced
from tests.aws.account import Life
from tests.aws.double import AwsDouble
from tests.aws.vm import init, namespaces
from tests.cluster import NAME, Bamboo, Command, Outcome

NODES = 2
TYPE = "g5.xlarge"
REGION = "us-east-1"
ZONES = tuple(f"{REGION}{letter}" for letter in "abc")
PAUSE_S = 0.5
"""A step takes four times as long until the gate is open: a run two minutes, enough to make a machine a node."""
TINY_GPT = {"size": "tiny", "context": 32}
SHAPE: dict[str, Any] = {"stages": 3, "steps": 60, "global_batch_size": 16, "microbatch_size": 4}


@dataclass(slots=True, kw_only=True)
class AwsBamboo(Bamboo):
    aws: AwsDouble

    def job(self, *, on: dict[str, Any] | None = None, **changes: Any) -> Path:
        """A tiny GPT that takes its time until ``open_gate``; ``on``: changes of the ``aws`` section."""
        wanted = {
            "name": NAME,
            **SHAPE,
            "cloud": "aws",
            "aws": {
                "types": [TYPE],
                "zones": list(ZONES),
                "ssh_from": [f"{namespaces.PUBLIC_GATEWAY}/32"],
                **(on or {}),
            },
            "recipe": str(Path(paced.__file__)),
            "recipe_options": {"gate": str(self._gate), "pause_s": PAUSE_S, "model": "gpt2", **TINY_GPT},
            "checkpoint": {"url": str(self.shared / "checkpoints"), "every": 10},
            **changes,
        }
        path = self.folder / f"{wanted['name']}.yaml"
        path.write_text(yaml.safe_dump(wanted), encoding="utf-8")
        return path

    @property
    def shared(self) -> Path:
        """A folder that the machines see too."""
        folder = Path(init.SHARED) / self.folder.name
        if not folder.exists():
            folder.mkdir()
            folder.chmod(0o777)
        return folder

    @property
    def _gate(self) -> Path:
        return self.shared / "gate"

    def close_gate(self) -> None:
        self._gate.unlink()

    def trains(self, *, steps: int) -> bool:
        """A run is on that has committed more than so many steps."""
        run = self.active_run()
        return run is not None and run.ended_at is None and run.committed_steps > steps

    def instance_of(self, node_id: str) -> str:
        return next(n.instance_id for n in self.status().nodes if n.node_id == node_id and n.instance_id)

    def states(self, *node_ids: str) -> list[str]:
        """Of nodes, as far as there are any."""
        try:
            found = {str(node.node_id): str(node.state) for node in self.status().nodes}
        except StateError:
            return []
        return [found.get(node_id, "") for node_id in node_ids]

    def alive(self) -> list[Life]:
        return self.aws.alive()

    def hide_torch(self) -> None:
        """From the commands: they try no recipe, which takes seconds."""
        hidden = self.folder / "without torch"
        hidden.mkdir()
        (hidden / "sitecustomize.py").write_text("import sys\nsys.modules['torch'] = None\n")
        before = os.environ.get("PYTHONPATH", "")
        self.environment["PYTHONPATH"] = f"{hidden}{os.pathsep}{before}".rstrip(os.pathsep)

    def begin_up(self, num_nodes: int = NODES, **changes: Any) -> Command:
        """``bamboo up`` of so many nodes, each a stage."""
        return self.begin("up", self.job(**{"nodes": num_nodes, "stages": num_nodes, **changes}), "--yes")

    def comes_up(self, num_nodes: int = NODES, **changes: Any) -> None:
        """``begin_up`` that ends well."""
        up = self.begin_up(num_nodes, **changes).end()
        assert up.exit_code == 0, f"{up.stderr}\n{self.story()}"

    def until_connecting(self, num_nodes: int = NODES) -> None:
        """So many nodes are rented, and known to be."""
        self.until(lambda: len(self._connecting()) >= num_nodes, f"{num_nodes} machines to be connected to")

    def _connecting(self) -> set[str]:
        if not (self.cluster_dir / "state.db").exists():
            return set()
        return {str(event.node_id) for event in self.events("node") if "connecting" in event.text}

    def told_at(self, words: str) -> float:
        """When the story first said so."""
        return next(event.at for event in self.events() if words in event.text)

    def has_coordinator(self) -> bool:
        return lock.is_locked(self.cluster_dir)

    def kill_coordinator(self) -> None:
        pid = lock.owner(self.cluster_dir)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        self.until(lambda: not self.has_coordinator(), "the coordinator to be dead")

    def goes_down(self, num_rented: int | None = None) -> Outcome:
        """``bamboo down``, after which the account is as it was. ``num_rented``: instances that there were in all; by
        now none is on its way any more, and EC2 lists those that ended."""
        down = self.call("down", "--yes", "--now", "--cluster", self.cluster)
        assert down.exit_code == 0, f"{down.stderr}\n{self.story()}"
        assert self.aws.remains() == []
        assert num_rented in (None, len(self.aws.lives())), self.story()
        return down


def waits_for_nodes(up: Command) -> bool:
    """It has done all that it does itself."""
    return "waiting for the nodes" in up.log.with_suffix(".err").read_text()
