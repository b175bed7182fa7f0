"""EC2's descriptions as ours. Pure."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from bamboo_cli.providers.aws_cloud.requests import CLUSTER_TAG, NODE_TAG, TOKEN_TAG, cluster_of, node_of
from bamboo_cli.providers.base import EndReason, Instance, InstanceState, Reach

Described = Mapping[str, Any]

_STATES = {
    "pending": InstanceState.PENDING,
    "running": InstanceState.RUNNING,
    "shutting-down": InstanceState.ENDING,
    "stopping": InstanceState.ENDING,
    "stopped": InstanceState.ENDING,
    "terminated": InstanceState.TERMINATED,
}
_BY_CLOUD = ("Server.SpotInstanceTermination", "Server.SpotInstanceShutdown")
_BY_USER = ("Client.UserInitiatedShutdown", "Client.UserInitiatedHibernate")
_INTERRUPTED = re.compile(
    r"^instance-(terminated|stopped)-(by-price|no-capacity|capacity-oversubscribed|launch-group-constraint|by-experiment)$"
)
_MARKED = (
    "marked-for-termination",
    "marked-for-stop",
    "marked-for-stop-by-experiment",
    "marked-for-termination-by-experiment",
)
_MOMENT = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?:GMT|UTC)\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotStatus:
    code: str
    at: float
    """Since when."""

    @property
    def is_marked(self) -> bool:
        return self.code in _MARKED

    @property
    def is_interrupted(self) -> bool:
        return _INTERRUPTED.match(self.code) is not None


def tags_of(described: Described) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in described.get("Tags", ())}


def spot_statuses(requests: Iterable[Described]) -> dict[str, SpotStatus]:
    """By instance id."""
    return {
        request["InstanceId"]: SpotStatus(
            code=request["Status"].get("Code", ""), at=_seconds(request["Status"].get("UpdateTime"))
        )
        for request in requests
        if request.get("InstanceId") and request.get("Status")
    }


def instances_of(
    reservations: Iterable[Described],
    statuses: Mapping[str, SpotStatus],
    reach_of: Callable[[str, str], Reach | None],
    *,
    public: bool,
) -> tuple[Instance, ...]:
    """``reach_of``: from an address and a token. ``public``: by the public address."""
    described = [one for reservation in reservations for one in reservation.get("Instances", ())]
    return tuple(instance_of(one, statuses.get(one["InstanceId"]), reach_of, public=public) for one in described)


def instance_of(
    described: Described,
    status: SpotStatus | None,
    reach_of: Callable[[str, str], Reach | None],
    *,
    public: bool,
) -> Instance:
    """What the spot request says counts where the instance itself says nothing, or later."""
    marks = tags_of(described)
    state = _STATES.get(described["State"]["Name"], InstanceState.PENDING)
    if status is not None and status.is_marked and state is InstanceState.RUNNING:
        state = InstanceState.ENDING
    token = marks.get(TOKEN_TAG) or described.get("ClientToken") or described["InstanceId"]
    instance = Instance(
        instance_id=described["InstanceId"],
        token=token,
        node_id=marks.get(NODE_TAG) or node_of(token),
        cluster_id=marks.get(CLUSTER_TAG) or cluster_of(described.get("KeyName", "")),
        instance_type=described["InstanceType"],
        zone=described["Placement"]["AvailabilityZone"],
        state=state,
        address=described.get("PrivateIpAddress", ""),
        launched_at=_seconds(described.get("LaunchTime")),
        is_spot=described.get("InstanceLifecycle") == "spot",
    )
    if state is InstanceState.TERMINATED:
        return replace(instance, end_reason=_end_reason(described, status), ended_at=_ended_at(described, status))
    address = described.get("PublicIpAddress" if public else "PrivateIpAddress")
    if state is InstanceState.RUNNING and address:
        return replace(instance, reach=reach_of(address, instance.token))
    return instance


def _end_reason(described: Described, status: SpotStatus | None) -> EndReason:
    code = (described.get("StateReason") or {}).get("Code", "")
    if code in _BY_CLOUD or (status is not None and status.is_interrupted):
        return EndReason.PREEMPTED
    if code in _BY_USER:
        return EndReason.USER
    return EndReason.FAILED


def _ended_at(described: Described, status: SpotStatus | None) -> float | None:
    """None where neither the instance nor its spot request tells."""
    found = _MOMENT.search(described.get("StateTransitionReason") or "")
    if found:
        return datetime.strptime(found.group(1), "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp()
    if status is not None and status.code.startswith("instance-terminated"):
        return status.at or None
    return None


def _seconds(moment: datetime | None) -> float:
    return 0.0 if moment is None else moment.timestamp()


# --- what is left ------------------------------------------------------------------------------------------------


def left_instances(region: str, reservations: Iterable[Described]) -> list[str]:
    return [
        f"{region}: instance {one['InstanceId']} ({tags_of(one).get(NODE_TAG, '?')}) is {one['State']['Name']}"
        for reservation in reservations
        for one in reservation.get("Instances", ())
        if one["State"]["Name"] != "terminated"
    ]


def left_requests(region: str, requests: Iterable[Described]) -> list[str]:
    """Only what could still become an instance: one that ended stays listed for days."""
    return [
        f"{region}: spot request {one['SpotInstanceRequestId']} is {one['State']}"
        for one in requests
        if one["State"] in ("open", "active")
    ]


def left_volumes(region: str, volumes: Iterable[Described]) -> list[str]:
    return [
        f"{region}: volume {one['VolumeId']} ({one['Size']} GB) is {one['State']}"
        for one in volumes
        if one["State"] not in ("deleting", "deleted")
    ]


def left_interfaces(region: str, interfaces: Iterable[Described]) -> list[str]:
    return [f"{region}: network interface {one['NetworkInterfaceId']} is {one['Status']}" for one in interfaces]


def left_groups(region: str, groups: Iterable[Described]) -> list[str]:
    return [f"{region}: security group {one['GroupId']} ({one['GroupName']})" for one in groups]


def left_keys(region: str, keys: Iterable[Described]) -> list[str]:
    return [f"{region}: key pair {one['KeyName']}" for one in keys]
