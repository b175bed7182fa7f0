"""EC2's filters over the things that the double keeps itself."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from moto.ec2.exceptions import EC2ClientError

FIELDS = {
    "instance-id": "InstanceId",
    "spot-instance-request-id": "SpotInstanceRequestId",
    "state": "State",
    "type": "Type",
}


def passes(thing: Mapping[str, Any], filters: Mapping[str, list[str]]) -> bool:
    """All filters, any value of each; ``*`` and ``?`` are wild."""
    return all(
        any(fnmatchcase(have, pattern) for have in _values(thing, name) for pattern in patterns)
        for name, patterns in filters.items()
    )


def _values(thing: Mapping[str, Any], name: str) -> list[str]:
    tags = {tag["Key"]: tag["Value"] for tag in thing.get("Tags", [])}
    if name.startswith("tag:"):
        key = name.removeprefix("tag:")
        return [tags[key]] if key in tags else []
    if name == "tag-key":
        return list(tags)
    if name == "status-code":
        return [thing["Status"]["Code"]]
    if name not in FIELDS:
        raise EC2ClientError("InvalidParameterValue", f"The filter '{name}' is invalid")
    value = thing.get(FIELDS[name])
    return [] if value is None else [str(value)]
