"""Whether checkpoints can be kept where the job wants them, asked before anything is rented."""

import threading

from bamboo_trainer import storage

from bamboo_cli import output
from bamboo_cli.config import JobConfig
from bamboo_cli.errors import BambooError, UsageError

TIMEOUT_S = 60.0
LOOK_S = 0.5


def check_storage(job: JobConfig, *, from_afar: bool = True) -> None:
    """``from_afar``: also write a small file to a store that is not on this machine.

    Raises UsageError when checkpoint.url cannot be used, BambooError when its package is missing.
    """
    url = job.checkpoint.url
    if not url:
        return
    package = storage.missing_package(url)
    if package is not None:
        raise BambooError(
            f"checkpoint.url {url} needs {package}, which is not installed; nothing was rented",
            next_step=f"Install it with: pip install {package}",
        )
    try:
        if storage.is_local(url):
            storage.try_out(url)
        elif from_afar:
            _try_afar(url)
    except OSError as error:
        raise UsageError(
            f"checkpoint.url {url} cannot be used: {error}; nothing was rented",
            next_step="Name a folder that can be written, or leave the key out for one of Bamboo's own.",
        ) from error


def _try_afar(url: str) -> None:
    """Raises OSError, also when it takes too long."""
    found: list[OSError] = []

    def work() -> None:
        try:
            storage.try_out(url)
        except OSError as error:
            found.append(error)

    thread = threading.Thread(target=work, daemon=True)  # one that hangs must not keep the command from ending
    thread.start()
    with output.waiting(f"a small file to be written to {url}") as saw:
        for _ in range(round(TIMEOUT_S / LOOK_S)):
            thread.join(LOOK_S)
            if not thread.is_alive():
                break
            saw("")
        else:
            raise storage.StorageError(f"no answer within {TIMEOUT_S:.0f} s")
    if found:
        raise found[0]
