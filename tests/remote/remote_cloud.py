"""A cloud in memory whose instances have no agent: all are one machine with a real sshd, each with a folder of its own.

``python -m tests.remote.remote_cloud FOLDER`` is a coordinator of such a cluster, as a process that can be killed: its
cloud is in a file.
"""

import asyncio
import json
import logging
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from bamboo_cli import jobs
from bamboo_cli.config import JobConfig
from bamboo_cli.coordinator import lock
from bamboo_cli.coordinator.inbox import steady_clock
from bamboo_cli.coordinator.service import Service
from bamboo_cli.providers.base import EndReason, Instance, InstanceState, NodeConfig, Offer, Reach
from bamboo_cli.remote.settings import RemoteConfig
from tests.coordinator.memory_cloud import MemoryCloud, offer

ADDRESS = "127.0.0.1"
_MADE: TypeAdapter[dict[str, Instance]] = TypeAdapter(dict[str, Instance])


@dataclass
class RemoteCloud(MemoryCloud):
    reach: Reach | None = None

    def _make(self, offer: Offer, config: NodeConfig, token: str) -> None:
        super()._make(offer, config, token)
        self.made[token] = replace(self.made[token], reach=self.reach, address=ADDRESS)


@dataclass
class CloudInAFile(RemoteCloud):
    """What it has made is there after a kill."""

    file: Path = Path()

    def __post_init__(self) -> None:
        if self.file.exists():
            self.made = _MADE.validate_json(self.file.read_bytes())

    def _make(self, offer: Offer, config: NodeConfig, token: str) -> None:
        super()._make(offer, config, token)
        self.file.write_bytes(_MADE.dump_json(self.made))


def write_process_config(folder: Path, *, reach: Reach, job: JobConfig, remote: dict[str, Any]) -> None:
    (folder / "process.json").write_text(
        json.dumps({"reach": asdict(reach), "job": job.model_dump(mode="json"), "remote": remote})
    )


def end_instances(folder: Path) -> None:
    """All that were made, as the cloud ends machines that shut down, while no coordinator is there."""
    file = folder / "cloud.json"
    made = _MADE.validate_json(file.read_bytes())
    ended = {
        token: replace(i, state=InstanceState.TERMINATED, ended_at=time.time(), end_reason=EndReason.FAILED)
        for token, i in made.items()
    }
    file.write_bytes(_MADE.dump_json(ended))


async def serve(folder: Path) -> None:
    wanted = json.loads((folder / "process.json").read_text())
    job = JobConfig.model_validate(wanted["job"])
    provider = CloudInAFile(
        market=tuple(offer(zone.name) for zone in job.local.zones),
        reach=Reach(**wanted["reach"]),
        file=folder / "cloud.json",
    )
    remote = RemoteConfig(**{name: tuple(v) if isinstance(v, list) else v for name, v in wanted["remote"].items()})
    service = Service(
        folder,
        config=jobs.cluster_config(job, "demo-1"),
        provider=provider,
        notice_s=10.0,
        clock=steady_clock(),
        remote=remote,
    )
    await service.run()


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    with lock.held(Path(sys.argv[1])):
        asyncio.run(serve(Path(sys.argv[1])))
