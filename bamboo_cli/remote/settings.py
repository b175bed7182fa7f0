"""What is wished of a machine before it is a node. Pure."""

from dataclasses import dataclass
from pathlib import Path

IMAGE_PYTHONS = (
    "python3",
    "/opt/pytorch/bin/python",
    "/opt/conda/bin/python",
    "python3.13",
    "python3.12",
    "python3.11",
)
"""Where images have a Python: the system's, and that of AWS' and Google's deep learning images."""
TORCH = "torch>=2.6"
ORPHAN_AFTER_S = 3600.0
CONNECT_WITHIN_S = 600.0
BASTION_STEP = "bastion"
"""In which a machine fails whose way was down for too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteConfig:
    pythons: tuple[str, ...] = IMAGE_PYTHONS
    """Tried in order: the first that is new enough and has a torch, else the first that is new enough."""
    torch: str = TORCH
    """What pip is asked for; nothing is loaded if the image's satisfies it."""
    index_url: str = ""
    """Where torch is loaded from; empty: where pip looks by itself."""
    packages: tuple[str, ...] = ()
    """Further ones, such as ``s3fs`` for checkpoints on S3."""
    wheelhouse: Path | None = None
    """A folder here with the wheels of all that is needed, which is copied; nothing is loaded from anywhere else."""
    connect_within_s: float = CONNECT_WITHIN_S
    """For an SSH connection to a machine that boots."""
    orphan_after_s: float = ORPHAN_AFTER_S
    shutdown_command: tuple[str, ...] = ()
    """With which an agent that nobody comes back to ends its machine; empty: ``shutdown -h now``."""
    metadata_endpoint: str = ""
    notice_poll_s: float = 5.0
