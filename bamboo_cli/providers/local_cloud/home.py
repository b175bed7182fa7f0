"""What an instance of the local cloud finds on its "disk" and in its environment when it boots."""

import os
from dataclasses import asdict
from pathlib import Path

from pydantic import TypeAdapter

from bamboo_cli.providers.local_cloud import store
from bamboo_cli.providers.local_cloud.model import Rented
from bamboo_cli.providers.local_cloud.processes import CLUSTER_VARIABLE, INSTANCE_VARIABLE

_CONFIG_FILE: TypeAdapter[dict[str, object]] = TypeAdapter(dict[str, object])


def of(folder: Path, rented: Rented) -> Path:
    """``folder``: of the local cloud."""
    return folder / "instances" / rented.instance_id


def write_config(folder: Path, rented: Rented) -> None:
    """What the agent reads: ``bamboo_agent.config.AgentConfig``. Raises OSError."""
    home = of(folder, rented)
    home.mkdir(parents=True, exist_ok=True)
    facts = {
        "instance_id": rented.instance_id,
        "zone": rented.request.zone,
        "address": rented.address,
        "metadata_endpoint": _endpoint_url(rented),
        "notice_poll_s": rented.request.notice_poll_s,
        "num_accelerators": rented.request.num_accelerators,
    }
    store.write_private(home / "config.json", _CONFIG_FILE.dump_json(asdict(rented.request.config) | facts, indent=1))


def environment(folder: Path, rented: Rented) -> dict[str, str]:
    return dict(os.environ) | {
        "BAMBOO_NODE_CONFIG": str(of(folder, rented) / "config.json"),
        "AWS_EC2_METADATA_SERVICE_ENDPOINT": _endpoint_url(rented),
        CLUSTER_VARIABLE: rented.request.config.cluster_id,
        INSTANCE_VARIABLE: rented.instance_id,
    }


def _endpoint_url(rented: Rented) -> str:
    return f"http://{rented.address}:{rented.metadata_port}"
