"""``python -m bamboo_cli.providers.local_cloud FOLDER``: the daemon. Returns when it serves; it lives on by itself."""

import argparse
import fcntl
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from bamboo_cli.errors import BambooError, StateError
from bamboo_cli.providers.local_cloud import store
from bamboo_cli.providers.local_cloud.api import Api
from bamboo_cli.providers.local_cloud.calls import ADDRESS, API_FILE, BORN, LOG_FILE, ApiAddress
from bamboo_cli.providers.local_cloud.cloud import LocalCloud

log = logging.getLogger(__name__)

TICK_S = 0.1
"""How late an end, a boot or a preemption may be noticed."""
IDLE_S = 30.0
READY = b"ready"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bamboo_cli.providers.local_cloud", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the cloud keeps its state and its instances")
    parser.add_argument("--idle-s", type=float, default=IDLE_S, help="end that long after the last instance has")
    parser.add_argument(BORN, action="store_true", help="this process is the daemon: born in the background")
    arguments = parser.parse_args()
    folder: Path = arguments.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if arguments.born:
        return serve_here(folder, idle_s=arguments.idle_s)
    return detach(folder, lambda ready: serve(folder, idle_s=arguments.idle_s, ready=ready))


def serve_here(folder: Path, *, idle_s: float) -> int:
    """In this process, whose standard streams are where they should be; its clients look for ``api.json``."""
    _begin_log()
    try:
        serve(folder, idle_s=idle_s, ready=lambda: None)
    except (BambooError, OSError) as error:
        log.error("%s", error)
        return 1
    return 0


def detach(folder: Path, work: Callable[[Callable[[], None]], None]) -> int:
    """Runs ``work(ready)`` in a child in its own session. Returns 0 once it is ready, 1 with its error printed."""
    reading, writing = os.pipe()
    if os.fork() != 0:
        os.close(writing)
        with os.fdopen(reading, "rb") as answer:
            told = answer.read()
        if told != READY:
            print(told.decode(errors="replace") or f"the local cloud died, see {folder}/{LOG_FILE}", file=sys.stderr)
        return 0 if told == READY else 1
    os.close(reading)
    os.setsid()
    os.chdir(folder)
    _redirect(folder / LOG_FILE)
    _begin_log()
    with os.fdopen(writing, "wb", buffering=0) as pipe:

        def ready() -> None:
            pipe.write(READY)
            pipe.close()

        try:
            work(ready)
        except (BambooError, OSError) as error:
            log.error("%s", error)
            if not pipe.closed:
                pipe.write(str(error).encode())
            return 1
    return 0


def serve(folder: Path, *, idle_s: float, ready: Callable[[], None]) -> None:
    """Until the cloud has been empty and unasked for ``idle_s``, or is told to end. Raises StateError, OSError."""
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StateError(f"another local cloud serves {folder}") from error
        cloud = LocalCloud(folder)
        api = Api(cloud)
        address = ApiAddress(port=api.port, token=api.token, pid=os.getpid())
        store.write_private(folder / API_FILE, ADDRESS.dump_json(address))
        log.info("the local cloud serves %s on port %d", folder, api.port)
        ready()
        while not (stopped.wait(TICK_S) or cloud.closed):
            cloud.tick()
            if cloud.idle_s > idle_s:
                cloud.close_if_empty()
        (folder / API_FILE).unlink(missing_ok=True)
        api.shutdown()
        api.server_close()
        cloud.close_machines()
        log.info("the local cloud ends")


def _redirect(path: Path) -> None:
    """Standard streams to nowhere and to the log."""
    nowhere, output = os.open(os.devnull, os.O_RDONLY), os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for source, target in ((nowhere, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.close(nowhere)
    os.close(output)


def _begin_log() -> None:
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")


if __name__ == "__main__":
    sys.exit(main())
