"""Whether the trackers that a job names can be used, asked before anything is rented."""

import importlib.util

from bamboo_cli.config import JobConfig
from bamboo_cli.errors import BambooError

EXTRAS = ("wandb", "mlflow")


def check_trackers(job: JobConfig) -> None:
    """Raises BambooError when a package is missing."""
    missing = [name for name in job.trackers if name in EXTRAS and not _is_installed(name)]
    if missing:
        raise BambooError(
            f"trackers: {', '.join(missing)} is named in the job, but not installed; nothing was rented",
            next_step=f"Install it with: pip install 'bamboo-train[{','.join(missing)}]'; or leave it out.",
        )


def _is_installed(name: str) -> bool:
    """A folder of that name, such as wandb leaves where it ran, is no package."""
    found = importlib.util.find_spec(name)
    return found is not None and found.origin is not None
