"""Everything that carries a cluster's tag, in every region of it: what is left, and ending it."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from bamboo_cli.errors import CloudError, NotPermittedError
from bamboo_cli.providers.aws_cloud import listing, operations, requests
from bamboo_cli.providers.aws_cloud.calls import Calls
from bamboo_cli.providers.aws_cloud.operations import Operation

_LEFT: tuple[tuple[str, Operation, Callable[[str, Iterable[Any]], list[str]]], ...] = (
    ("instances", operations.INSTANCES, listing.left_instances),
    ("spot requests", operations.SPOT_REQUESTS, listing.left_requests),
    ("volumes", operations.VOLUMES, listing.left_volumes),
    ("network interfaces", operations.INTERFACES, listing.left_interfaces),
    ("security groups", operations.GROUPS, listing.left_groups),
    ("key pairs", operations.KEYS, listing.left_keys),
)
_NOT_YET = ("DependencyViolation", "InvalidGroup.InUse", "VolumeInUse", "InvalidNetworkInterface.InUse")
"""Something that is ending still uses it; whoever cleans tries again."""
_GONE = (
    "InvalidGroup.NotFound",
    "InvalidKeyPair.NotFound",
    "InvalidVolume.NotFound",
    "InvalidNetworkInterfaceID.NotFound",
    "InvalidSpotInstanceRequestID.NotFound",
)


def left_behind(calls: Calls, regions: Sequence[str], cluster_id: str) -> tuple[str, ...]:
    """A line for each thing, and for each kind that may not be listed: its end is not proven. Raises CloudError."""
    found: list[str] = []
    for region in regions:
        for what, operation, lines in _LEFT:
            try:
                found += lines(region, _listed(calls, operation, region, cluster_id))
            except NotPermittedError as error:
                found.append(f"{region}: {what} cannot be listed: {error.message}")
    return tuple(found)


def clean(calls: Calls, regions: Sequence[str], cluster_id: str) -> None:
    """End all that is not an instance. What is still in use is left for the next try.

    Raises CloudError, once everything was tried, with what AWS refused.
    """
    refused: list[CloudError] = []
    for region in regions:
        for operation, arguments in _endings(calls, region, cluster_id, refused):
            try:
                calls.call(operation, region, expected=_NOT_YET + _GONE, **arguments)
            except CloudError as error:
                refused.append(error)
    if refused:
        raise type(refused[0])("; ".join(dict.fromkeys(e.message for e in refused)), next_step=refused[0].next_step)


def _endings(
    calls: Calls, region: str, cluster_id: str, refused: list[CloudError]
) -> Iterable[tuple[Operation, dict[str, Any]]]:
    """Calls that end what is there, things in use by others last."""

    def listed(operation: Operation) -> list[Any]:
        try:
            return _listed(calls, operation, region, cluster_id)
        except NotPermittedError as error:
            refused.append(error)
            return []

    open_requests = [r for r in listed(operations.SPOT_REQUESTS) if r["State"] in ("open", "active")]
    if open_requests:
        ids = [request["SpotInstanceRequestId"] for request in open_requests]
        yield operations.CANCEL_SPOT_REQUESTS, {"SpotInstanceRequestIds": ids}
    for volume in listed(operations.VOLUMES):
        if volume["State"] == "available":
            yield operations.DELETE_VOLUME, {"VolumeId": volume["VolumeId"]}
    for interface in listed(operations.INTERFACES):
        if interface["Status"] == "available":
            yield operations.DELETE_INTERFACE, {"NetworkInterfaceId": interface["NetworkInterfaceId"]}
    for group in listed(operations.GROUPS):
        yield operations.DELETE_GROUP, {"GroupId": group["GroupId"]}
    for key in listed(operations.KEYS):
        yield operations.DELETE_KEY, {"KeyName": key["KeyName"]}


def _listed(calls: Calls, operation: Operation, region: str, cluster_id: str) -> list[Any]:
    filters = requests.of_cluster(cluster_id)
    if operation.pages is None:
        return list(calls.ask(operation, region, Filters=filters).get("KeyPairs", ()))
    return calls.items(operation, region, Filters=filters)
