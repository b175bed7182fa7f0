"""What a client can ask of the local cloud: POST of one of these as JSON to ``/<kind>``, answered with JSON.

Where to ask is in ``api.json`` of the cloud's folder, readable by its owner only.
"""

from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from bamboo_cli.errors import CapacityError, CloudError, InstanceGoneError
from bamboo_cli.providers.base import Instance
from bamboo_cli.providers.local_cloud.model import Request
from bamboo_cli.providers.local_cloud.trace import Change

API_FILE = "api.json"
LOG_FILE = "daemon.log"
BORN = "--born"
"""For a daemon of a nursery that commands share: it is in the background already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiAddress:
    """On 127.0.0.1. (A Unix socket would be simpler, but its path may not be longer than about 100 characters.)"""

    port: int
    token: str
    pid: int
    """Of the daemon."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Create:
    """Answered with an Instance."""

    request: Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Describe:
    """Answered with a list of Instances, ended ones included."""

    cluster_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminate:
    instance_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Preempt:
    instance_id: str
    notice_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Follow:
    """From now on the cluster's nodes come and go as the changes say. Said again: the first time stands."""

    cluster_id: str
    changes: tuple[Change, ...]
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Retire:
    """End the cloud itself. Answered with whether it does: not while an instance lives."""


Call = Create | Describe | Terminate | Preempt | Follow | Retire
CALLS: dict[str, TypeAdapter[Any]] = {
    "create": TypeAdapter(Create),
    "describe": TypeAdapter(Describe),
    "terminate": TypeAdapter(Terminate),
    "preempt": TypeAdapter(Preempt),
    "follow": TypeAdapter(Follow),
    "retire": TypeAdapter(Retire),
}
ADDRESS: TypeAdapter[ApiAddress] = TypeAdapter(ApiAddress)
INSTANCE: TypeAdapter[Instance] = TypeAdapter(Instance)
INSTANCES: TypeAdapter[tuple[Instance, ...]] = TypeAdapter(tuple[Instance, ...])
NOTHING: TypeAdapter[None] = TypeAdapter(None)
YES_OR_NO: TypeAdapter[bool] = TypeAdapter(bool)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The answer, with a status of 400 or above, when a call raised a CloudError."""

    kind: str
    message: str
    next_step: str = ""


FAILURE: TypeAdapter[Failure] = TypeAdapter(Failure)
_ERRORS: dict[str, type[CloudError]] = {"capacity": CapacityError, "gone": InstanceGoneError, "cloud": CloudError}


def failure_of(error: CloudError) -> Failure:
    kind = next((kind for kind, cls in _ERRORS.items() if cls is type(error)), "cloud")
    return Failure(kind=kind, message=error.message, next_step=error.next_step)


def error_of(failure: Failure) -> CloudError:
    return _ERRORS.get(failure.kind, CloudError)(failure.message, next_step=failure.next_step)
