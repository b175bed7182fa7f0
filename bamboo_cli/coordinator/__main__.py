"""``python -m bamboo_cli.coordinator FOLDER [--detach]``: the coordinator of the cluster in that folder."""

import asyncio
import logging
import os
import signal
import sys
from pathlib import Path

from sqlalchemy import select

from bamboo_cli import jobs
from bamboo_cli.config import JobConfig
from bamboo_cli.coordinator import lock, schema
from bamboo_cli.coordinator.inbox import steady_clock
from bamboo_cli.coordinator.service import Service
from bamboo_cli.coordinator.store import open_for_writing, reading, state_path
from bamboo_cli.errors import BambooError
from bamboo_cli.providers.choose import provider_of

DETACH = "--detach"
SWITCH_S = 0.0005
"""How long one thread may keep the interpreter from another (Python: 5 ms). Everybody waits for the thread of the
links, which lets go of it with each statement to SQLite, and then waits behind all that make SSH connections: with 16
of them an event took 65 ms, now 10."""


async def serve(cluster_dir: Path) -> None:
    """Until SIGTERM or SIGINT, or until the cluster is closed and nothing is left. Raises StateError."""
    engine = open_for_writing(state_path(cluster_dir))
    with reading(engine) as connection:
        row = connection.execute(select(schema.cluster)).one()
    engine.dispose()
    job = JobConfig.model_validate(row.job)
    service = Service(
        cluster_dir,
        config=jobs.cluster_config(job, row.cluster_id),
        provider=provider_of(job, cluster_dir),
        notice_s=jobs.notice_s(job),
        clock=steady_clock(),
        remote=jobs.remote_config(job),
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, service.stop)
    await service.run()


def detach() -> None:
    """Go on as a child in a session of its own, which Ctrl-C, a closed terminal and our parent's end do not reach.

    The process that was started prints the child's id and exits.
    """
    child = os.fork()
    if child:
        print(child, flush=True)
        os._exit(0)
    os.setsid()
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())


def main() -> int:
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("bamboo_cli.coordinator.server").setLevel(logging.WARNING)
    cluster_dir = Path(sys.argv[1])
    if DETACH in sys.argv[2:]:
        detach()
    try:
        sys.setswitchinterval(SWITCH_S)
        with lock.held(cluster_dir):
            asyncio.run(serve(cluster_dir))
    except BambooError as error:
        print(f"{error.message}\n{error.next_step}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
