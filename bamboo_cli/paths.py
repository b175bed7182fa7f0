"""Where Bamboo keeps its state on this machine."""

import os
from pathlib import Path

from platformdirs import user_state_path


def home() -> Path:
    """``$BAMBOO_HOME``, or the platform's user state folder. Absolute; not created here."""
    chosen = os.environ.get("BAMBOO_HOME")
    return Path(chosen).expanduser().absolute() if chosen else user_state_path("bamboo").absolute()


def clusters_dir() -> Path:
    return home() / "clusters"


def cluster_dir(name: str) -> Path:
    """The folder of one cluster: ``state.db``, ``coordinator.lock``, ``coordinator.log``, ``checkpoints/<run>/``."""
    return clusters_dir() / name


def local_cloud_dir() -> Path:
    """The local cloud's own state, one folder per instance. It outlives every command."""
    return home() / "local-cloud"
