"""What is left in the account. Defaults that every account has are not counted."""

from typing import Any

from tests.aws.account import Account


def of_account(account: Account, backends: Any) -> list[str]:
    there = [f"{region}: {what}" for region, backend in backends.items() for what in _of_region(account, backend)]
    return there + [f"experiment template {name}" for name in account.experiments]


def _of_region(account: Account, backend: Any) -> list[str]:
    instances = [i for r in backend.reservations.values() for i in r.instances if i.state != "terminated"]
    requests = account.spot_requests.get(backend.region_name, {}).values()
    groups = [g for there in backend.groups.values() for g in there.values() if g.name != "default"]
    return [
        *(f"instance {i.id} is {i.state}" for i in instances),
        *(f"volume {v.id}" for v in backend.volumes.values()),
        *(f"network interface {card}" for card in backend.enis),
        *(f"address {address.public_ip}" for address in backend.addresses),
        *(f"security group {g.id} {g.name}" for g in groups),
        *(f"key pair {name}" for name in backend.key_pairs),
        *(f"launch template {t}" for t in backend.launch_templates),
        *(f"spot request {r['SpotInstanceRequestId']}" for r in requests if r["State"] in ("open", "active")),
    ]
