"""A spot interruption on purpose, by AWS's Fault Injection Service: two minutes after a notice, as a real one."""

import time
from typing import Any

from bamboo_cli.errors import CloudError, NotPermittedError
from bamboo_cli.providers.aws_cloud import operations, requests
from bamboo_cli.providers.aws_cloud.calls import Calls


def interrupt(calls: Calls, region: str, described: dict[str, Any], role: str | None) -> None:
    """``role``: what the service acts as. Raises NotPermittedError without one; CloudError."""
    if role is None:
        raise NotPermittedError(
            "EC2 gives a notice on purpose only through its Fault Injection Service, which needs a role",
            next_step="Set `aws.fault_injection_role`, or take the node at once with `--no-notice`.",
        )
    instance_id = described["InstanceId"]
    if described.get("InstanceLifecycle") != "spot":
        raise CloudError(f"{instance_id} is rented on demand, which nobody takes away")
    account = calls.ask(operations.WHO_AM_I, region)["Account"]
    arn = f"arn:{role.split(':')[1]}:ec2:{region}:{account}:instance/{instance_id}"
    token = f"{instance_id}-{int(time.time())}"
    made = calls.ask(operations.CREATE_EXPERIMENT, region, **requests.interruption(arn, role, token))
    template_id = made["experimentTemplate"]["id"]
    try:
        calls.ask(operations.START_EXPERIMENT, region, clientToken=token, experimentTemplateId=template_id)
    finally:
        calls.ask(operations.DELETE_EXPERIMENT, region, id=template_id)
