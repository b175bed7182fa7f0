"""Everything that is a cluster's, in every region of it: what is left, and ending it."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from bamboo_cli.errors import CloudError, CredentialsError, NotPermittedError
from bamboo_cli.providers.aws_cloud import listing, operations, regions
from bamboo_cli.providers.aws_cloud.calls import Calls
from bamboo_cli.providers.aws_cloud.marked import marked
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


def left_behind(calls: Calls, names: Sequence[str], cluster_id: str) -> tuple[str, ...]:
    """``names``: of regions. A line for each thing, and for each kind that cannot be listed: its end is not proven.

    Raises CredentialsError.
    """
    found: list[str] = []
    for region in names:
        for what, operation, lines in _LEFT:
            try:
                found += lines(region, marked(calls, operation, region, cluster_id))
            except CloudError as error:
                told = regions.explained(calls, region, error)
                if isinstance(told, CredentialsError) and not isinstance(told, NotPermittedError):
                    raise told from error
                found.append(f"{region}: {what} cannot be listed: {told.message}")
    return tuple(found)


def clean(calls: Calls, names: Sequence[str], cluster_id: str) -> None:
    """End all that is not an instance. What is still in use is left for the next try.

    Raises CloudError, once everything was tried, with what AWS refused.
    """
    refused: list[CloudError] = []
    for region in names:
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
            return marked(calls, operation, region, cluster_id)
        except CloudError as error:
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
