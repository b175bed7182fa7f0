"""An agent process as a cloud starts one, in a folder of its own."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from bamboo_agent.messages import TellWorker
from bamboo_trainer.control import Prepare, TrainingSpec
from bamboo_trainer.plan import WorkerId

from tests.agent.coordinator_double import SECRET, CoordinatorDouble

WORKER = WorkerId("n1/1")


def prepare(worker_id: WorkerId = WORKER, **deeds: Any) -> TellWorker:
    """Have the worker double do something."""
    spec = TrainingSpec(
        run_id="r1",
        recipe="double",
        recipe_options=deeds,
        num_steps=1,
        num_microbatches=1,
        microbatch_size=1,
        seed=0,
        checkpoint_url="",
        checkpoint_every=1,
    )
    return TellWorker(worker_id=worker_id, message=Prepare(spec=spec))


@dataclass(slots=True, kw_only=True)
class Node:
    folder: Path
    process: "subprocess.Popen[bytes]"

    @property
    def log(self) -> str:
        return (self.folder / "agent.log").read_text()

    def workers(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children()

    def vanish(self) -> None:
        """Its whole process group, and the agent reaped."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()


def write_config(folder: Path, coordinator: CoordinatorDouble, **changes: object) -> None:
    config = {
        "cluster_id": "c-1",
        "node_id": "n1",
        "coordinator_address": "127.0.0.1",
        "coordinator_port": coordinator.port,
        "secret": SECRET,
        "instance_id": "i-1",
        "zone": "z1",
        "address": "127.0.0.1",
        "beat_s": 0.05,
        "metadata_endpoint": "http://127.0.0.1:9",
        "notice_poll_s": 0.05,
    }
    (folder / "config.json").write_text(json.dumps(config | changes))


DOUBLE = f"{sys.executable} -S -E {Path(__file__).with_name('worker_double.py')}"


def start_node(folder: Path, *, worker_command: str = DOUBLE) -> Node:
    """The caller has written the configuration, and makes it vanish."""
    environment = os.environ | {
        "BAMBOO_NODE_CONFIG": str(folder / "config.json"),
        "BAMBOO_WORKER_COMMAND": worker_command,
    }
    with (folder / "agent.log").open("ab") as log:
        command = [sys.executable, "-m", "bamboo_agent"]
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    return Node(folder=folder, process=process)
