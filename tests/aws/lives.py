"""How instances live and end: pending, running, shutting-down, terminated, forgotten, with whatever stands behind them.

``settle`` is asked before every call and, where there are machines, all the time.
"""

from datetime import UTC, datetime
from typing import Any

from moto.ec2.models.instances import Instance, InstanceState, StateReason
from moto.ec2.utils import random_spot_request_id

from tests.aws import market
from tests.aws.account import Account, End, Life
from tests.aws.firewall import Gate, rules_of
from tests.aws.launching import Launch
from tests.aws.machine import Boot, Stopped
from tests.aws.metadata import Metadata

PENDING, RUNNING, SHUTTING_DOWN, TERMINATED, STOPPED = (
    ("pending", 0),
    ("running", 16),
    ("shutting-down", 32),
    ("terminated", 48),
    ("stopped", 80),
)
ENDS = {
    End.USER: "instance-terminated-by-user",
    End.SHUTDOWN: "instance-terminated-by-user",
    End.INTERRUPTED: "instance-terminated-no-capacity",
    End.BROKEN: "instance-terminated-by-service",
}
"""What becomes of the spot request."""
MESSAGES = {
    End.USER: "Client.UserInitiatedShutdown: User initiated shutdown",
    End.SHUTDOWN: "Client.InstanceInitiatedShutdown: Instance initiated shutdown",
    End.INTERRUPTED: "Server.SpotInstanceTermination: Spot instance termination",
    End.BROKEN: "Server.InternalError: Internal error on launch",
}


def begin(account: Account, backend: Any, instance: Instance, launch: Launch) -> None:
    """moto has made the instance: give it a life, a spot request and a machine."""
    now = account.now()
    instance.launch_time = datetime.fromtimestamp(now, UTC).replace(tzinfo=None)
    instance._state = InstanceState(*PENDING)
    life = Life(
        instance_id=instance.id,
        region=backend.region_name,
        zone=launch.zone,
        instance_type=launch.instance_type,
        is_spot=launch.is_spot,
        spot_request_id=None,
        visible_at=now + account.visible_after_s,
        running_at=now + account.pending_s,
    )
    if launch.is_spot:
        life.spot_request_id = _open_request(account, backend, instance, launch, now)
    instance.spot_instance_request_id = life.spot_request_id  # type: ignore[attr-defined]
    instance.nics[0].delete_on_termination = launch.deletes_card
    instance.nics[0].add_tags(launch.card_tags)
    instance.nics[0].public_ip = account.new_public_address() if launch.has_public_address else None
    if account.machines is not None:
        life.machine = account.machines.boot(_boot(account, backend, instance, life))
    account.lives[instance.id] = life
    apply_groups(account, backend)


def apply_groups(account: Account, backend: Any) -> None:
    """After a change of groups or of what is in them."""
    if account.machines is None:
        return
    alive = [
        backend.get_instance(life.instance_id)
        for life in account.lives.values()
        if life.machine is not None and life.ended_at is None and life.region == backend.region_name
    ]
    gates = [
        Gate(
            addresses=tuple(address for address in (one.private_ip, one.public_ip) if address),
            rules=rules_of(one.security_groups, alive),
        )
        for one in alive
    ]
    account.machines.admit(backend.region_name, gates)


def settle(account: Account, backends: Any) -> None:
    """Whatever is due by now, happens."""
    for life in tuple(account.lives.values()):
        backend = backends[life.region]
        if life.ended_at is None:
            _settle_alive(account, backend, life, account.now())
        now = account.now()
        if life.gone_at is not None and now >= life.gone_at:
            life.gone_at = None
            backend.get_instance(life.instance_id)._state = InstanceState(*TERMINATED)
        if life.ended_at is not None and now > life.ended_at + account.listed_after_end_s:
            _forget(account, backend, life)


def terminate(account: Account, backend: Any, life: Life) -> None:
    """By TerminateInstances; moto has ended the instance already."""
    _end(account, backend, life, End.USER)


def end(account: Account, backend: Any, life: Life, reason: End) -> None:
    """By anything else."""
    backend.get_instance(life.instance_id).terminate()
    _end(account, backend, life, reason)


def announce(account: Account, life: Life, notice_s: float) -> None:
    """Of an interruption."""
    life.interrupted_at = account.now() + notice_s
    if life.machine is not None:
        life.machine.boot.metadata.interrupt(life.interrupted_at)
    if life.spot_request_id is not None:
        request = account.spot_requests[life.region][life.spot_request_id]
        close_request(request, "active", "marked-for-termination", account.now())


def close_request(request: dict[str, Any], state: str, status: str, now: float) -> None:
    request["State"] = state
    request["Status"] = {"Code": status, "Message": status, "UpdateTime": timestamp(now)}


def uses_of_group(backend: Any, group_id: str) -> list[str]:
    """What hinders that the group is deleted: instances and cards in it, rules of other groups that name it."""
    found = [
        instance.id
        for reservation in backend.reservations.values()
        for instance in reservation.instances
        if instance.state != "terminated" and group_id in [group.id for group in instance.security_groups]
    ]
    found += [card.id for card in backend.enis.values() if group_id in [group.id for group in card.group_set]]
    for groups in backend.groups.values():
        for group in groups.values():
            rules = [*group.ingress_rules, *group.egress_rules]
            named = {rule.source_group.get("GroupId") for rule in rules}
            if group.id != group_id and group_id in named:
                found.append(group.id)
    return found


def timestamp(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")


def _settle_alive(account: Account, backend: Any, life: Life, now: float) -> None:
    instance = backend.get_instance(life.instance_id)
    if life.interrupted_at is not None and now >= life.interrupted_at:
        end(account, backend, life, End.INTERRUPTED)
    elif life.machine is not None and (stopped := life.machine.stopped()) is not None:
        if stopped is Stopped.BROKE:
            end(account, backend, life, End.BROKEN)
        elif instance.instance_initiated_shutdown_behavior == "terminate" or life.is_spot:
            end(account, backend, life, End.SHUTDOWN)
        else:
            instance._state = InstanceState(*STOPPED)
            instance.state_reason = StateReason(MESSAGES[End.SHUTDOWN], End.SHUTDOWN.value)
    elif now >= life.running_at and instance.state == "pending":
        instance._state = InstanceState(*RUNNING)


def _end(account: Account, backend: Any, life: Life, reason: End) -> None:
    now = account.now()
    life.ended_at, life.gone_at = now, now + account.shutting_down_s
    instance = backend.get_instance(life.instance_id)
    instance._state = InstanceState(*SHUTTING_DOWN)
    instance.state_reason = StateReason(MESSAGES[reason], reason.value)
    when = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%d %H:%M:%S GMT")
    instance._reason = {End.USER: f"User initiated ({when})", End.INTERRUPTED: reason.value}.get(reason, "")
    if life.spot_request_id is not None:
        request = account.spot_requests[life.region][life.spot_request_id]
        if request["State"] == "active":
            close_request(request, "closed", ENDS[reason], now)
        elif request["State"] == "cancelled":
            close_request(request, "cancelled", ENDS[reason], now)
    if life.machine is not None:
        life.machine.kill()


def _forget(account: Account, backend: Any, life: Life) -> None:
    del account.lives[life.instance_id]
    for reservation_id, reservation in tuple(backend.reservations.items()):
        reservation.instances = [i for i in reservation.instances if i.id != life.instance_id]
        if not reservation.instances:
            del backend.reservations[reservation_id]
    for key, (_, reservation_id) in tuple(account.reservations.items()):
        if reservation_id not in backend.reservations and key[0] == life.region:
            del account.reservations[key]


def _open_request(account: Account, backend: Any, instance: Instance, launch: Launch, now: float) -> str:
    request_id = str(random_spot_request_id())
    account.spot_requests.setdefault(backend.region_name, {})[request_id] = {
        "CreateTime": timestamp(now),
        "InstanceId": instance.id,
        "InstanceInterruptionBehavior": "terminate",
        "LaunchedAvailabilityZone": launch.zone,
        "LaunchSpecification": {"InstanceType": launch.instance_type, "ImageId": instance.image_id},
        "ProductDescription": "Linux/UNIX",
        "SpotInstanceRequestId": request_id,
        "SpotPrice": f"{market.on_demand_usd(launch.instance_type):.6f}",  # the most that it pays
        "State": "active",
        "Status": {"Code": "fulfilled", "Message": "Your Spot request is fulfilled.", "UpdateTime": timestamp(now)},
        "Tags": [{"Key": key, "Value": value} for key, value in launch.request_tags.items()],
        "Type": "one-time",
    }
    return request_id


def _boot(account: Account, backend: Any, instance: Instance, life: Life) -> Boot:
    key = backend.key_pairs.get(instance.key_name)
    options = instance.metadata_options
    private, public = instance.private_ip or "", instance.public_ip or ""
    texts = {
        "meta-data/instance-id": instance.id,
        "meta-data/instance-type": life.instance_type,
        "meta-data/instance-life-cycle": "spot" if life.is_spot else "on-demand",
        "meta-data/placement/availability-zone": life.zone,
        "meta-data/placement/region": life.region,
        "meta-data/local-ipv4": private,
        **({"meta-data/public-ipv4": public} if public else {}),
    }
    return Boot(
        instance_id=instance.id,
        instance_type=life.instance_type,
        region=life.region,
        zone=life.zone,
        private_address=private,
        public_address=public,
        public_key=key.public_key if key is not None else "",
        user_data=instance.user_data.decode() if instance.user_data is not None else "",
        metadata=Metadata(
            texts=texts,
            needs_token=options.http_tokens == "required",
            hop_limit=options.http_put_response_hop_limit,
            clock=account.now,
        ),
    )
