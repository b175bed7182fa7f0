"""What a node is told when it starts: a JSON file that the cloud's user data (or the local cloud) wrote."""

import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

CONFIG_VARIABLE = "BAMBOO_NODE_CONFIG"
COMMAND_VARIABLE = "BAMBOO_WORKER_COMMAND"
ENDPOINT_VARIABLE = "AWS_EC2_METADATA_SERVICE_ENDPOINT"
"""The name that the AWS SDKs use for the same thing."""
EC2_ENDPOINT = "http://169.254.169.254"


class ConfigError(Exception):
    """The configuration file cannot be read. The message says which and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """Unknown keys are ignored, so that a newer cloud can start an older agent."""

    cluster_id: str
    node_id: str
    coordinator_address: str
    coordinator_port: int
    secret: str
    instance_id: str
    zone: str
    address: str
    """Where this node's workers listen for their peers."""
    beat_s: float = 1.0
    metadata_endpoint: str = ""
    """Empty: the environment's ``AWS_EC2_METADATA_SERVICE_ENDPOINT``, or EC2's address."""
    notice_poll_s: float = 5.0
    """AWS recommends 5 s; its notice comes up to 120 s ahead."""
    num_accelerators: int | None = None
    """Workers of the node. None: one for each device that the machine has, and at least one."""
    orphan_after_s: float = 0.0
    """Without a link to the coordinator for so long, the agent ends its machine; 0: never."""
    shutdown_command: tuple[str, ...] = ("shutdown", "-h", "now")

    @property
    def endpoint(self) -> str:
        return self.metadata_endpoint or os.environ.get(ENDPOINT_VARIABLE) or EC2_ENDPOINT


_CONFIG: TypeAdapter[AgentConfig] = TypeAdapter(AgentConfig)


def read_config(path: Path) -> AgentConfig:
    """Raises ConfigError."""
    try:
        return _CONFIG.validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read the node's configuration: {error}") from error
    except ValidationError as error:
        places = ", ".join(".".join(map(str, e["loc"])) + ": " + e["msg"] for e in error.errors()[:3])
        raise ConfigError(f"{path} is not a node configuration ({places}); write it anew") from error


def worker_command() -> tuple[str, ...]:
    """How a worker is started cold. ``BAMBOO_WORKER_COMMAND`` (shell words) replaces the trainer, for tests."""
    chosen = os.environ.get(COMMAND_VARIABLE)
    return tuple(shlex.split(chosen)) if chosen else (sys.executable, "-m", "bamboo_trainer")


def has_nursery() -> bool:
    """Whether workers are forked: not with a command of one's own, and on Linux only (macOS' own libraries, which torch
    uses, do not survive a fork).
    """
    return sys.platform == "linux" and not os.environ.get(COMMAND_VARIABLE)
