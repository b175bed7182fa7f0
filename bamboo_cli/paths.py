"""Where Bamboo keeps its state on this machine."""

import os
import re
from pathlib import Path

from platformdirs import user_state_path

from bamboo_cli.errors import UsageError

NAME_PATTERN = r"^[a-z][a-z0-9-]{0,39}$"
"""Of jobs and clusters: a name is a folder's, and part of what instances are marked with."""


NAME_WORDS = "at most 40 small letters, digits and dashes, with a letter first"
DEFAULT_NAME = "my-job"
NODES = "nodes"
"""Folder in a cluster's: what was done to set a rented node up, ``n3.log``, and copies of its logs, ``n3/``."""


def name_like(text: str) -> str:
    """The nearest that can be a name, such as ``my-job`` for ``My Job``."""
    dashed = re.sub(r"[^a-z0-9]+", "-", text.lower()).lstrip("-0123456789")
    return dashed[:40].strip("-") or DEFAULT_NAME


def home() -> Path:
    """``$BAMBOO_HOME``, or the platform's user state folder. Absolute; not created here."""
    chosen = os.environ.get("BAMBOO_HOME")
    return Path(chosen).expanduser().absolute() if chosen else user_state_path("bamboo").absolute()


def clusters_dir() -> Path:
    return home() / "clusters"


def cluster_dir(name: str) -> Path:
    """The folder of one cluster: ``state.db``, ``coordinator.lock``, ``coordinator.log``, ``checkpoints/<run>/``.

    Raises UsageError on what cannot be a name.
    """
    if not re.fullmatch(NAME_PATTERN, name):
        raise UsageError(f"{name!r} cannot be the name of a cluster", next_step=f"Use {NAME_WORDS}.")
    return clusters_dir() / name


def local_cloud_dir() -> Path:
    """The local cloud's own state, one folder per instance. It outlives every command."""
    return home() / "local-cloud"


def cron_dir() -> Path:
    """Jobs on a schedule: a folder for each entry, a lock for each cluster that they use."""
    return home() / "cron"
