"""Whatever is a cluster's: by its tag, and by the names that it was made with.

A tag can be taken off by hand, or by somebody's clean-up; the key pair that an instance was launched with, and the
name of a group, stay. What costs money must not be lost sight of for a tag.
"""

from typing import Any

from bamboo_cli.providers.aws_cloud import operations, requests
from bamboo_cli.providers.aws_cloud.calls import Calls
from bamboo_cli.providers.aws_cloud.operations import Operation

_NAMES = {
    operations.INSTANCES: ("key-name", "ReservationId"),
    operations.GROUPS: ("group-name", "GroupId"),
    operations.KEYS: ("key-name", "KeyName"),
}
"""The filter by name, and what tells one thing from another."""


def marked(calls: Calls, operation: Operation, region: str, cluster_id: str) -> list[Any]:
    """As ``operation`` lists them. Raises CloudError."""
    by_tag = _listed(calls, operation, region, requests.of_cluster(cluster_id))
    if operation not in _NAMES:
        return by_tag
    name, key = _NAMES[operation]
    by_name = _listed(calls, operation, region, [{"Name": name, "Values": [requests.name_of(cluster_id)]}])
    return list({found[key]: found for found in (*by_tag, *by_name)}.values())


def _listed(calls: Calls, operation: Operation, region: str, filters: list[dict[str, Any]]) -> list[Any]:
    if operation.pages is None:
        return list(calls.ask(operation, region, Filters=filters).get("KeyPairs", ()))
    return calls.items(operation, region, Filters=filters)
