"""The provider for EC2 spot instances. See docs/aws.md."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from bamboo_cli import keys
from bamboo_cli.errors import (
    CapacityError,
    CloudError,
    CredentialsError,
    InstanceGoneError,
    NotPermittedError,
    QuotaError,
    RequestRefusedError,
)
from bamboo_cli.providers.aws_cloud import launches, listing, market, network, operations, requests, sweep
from bamboo_cli.providers.aws_cloud.calls import Calls
from bamboo_cli.providers.aws_cloud.images import Image, TypeFacts, facts_of, find_image
from bamboo_cli.providers.aws_cloud.network import Place
from bamboo_cli.providers.aws_cloud.quotas import how_to_raise, quota_of
from bamboo_cli.providers.base import Instance, InstanceState, NodeConfig, Offer, Reach

SPOT_PRICES_S = 60.0
"""How long what was asked is taken for true, in seconds."""
PLACES_S = 600.0
LONG_S = 24 * 3600.0
FIRST_REGION = "us-east-1"
"""Knows of all others."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsSettings:
    """What is to be rented where; the job's ``aws`` section. Without types it is enough to list and to terminate."""

    regions: tuple[str, ...]
    zones: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    max_price_usd_per_hour: float | None = None
    on_demand_fallback: bool = False
    image: str = "auto"
    ssh_user: str = "ubuntu"
    ssh_from: tuple[str, ...] | None = None
    """None: from this machine's own public address."""
    bastion: str | None = None
    subnets: tuple[str, ...] = ()
    volume_gb: int = 100
    profile: str | None = None
    fault_injection_role: str | None = None


def all_regions(profile: str | None) -> tuple[str, ...]:
    """That the account may use. Raises CloudError."""
    answer = Calls(profile).ask(operations.REGIONS, FIRST_REGION)
    return tuple(sorted(region["RegionName"] for region in answer["Regions"]))


class AwsProvider:
    name = "aws"
    poll_s = 5.0
    ends_within_s = 900.0

    def __init__(self, folder: Path, settings: AwsSettings, calls: Calls | None = None) -> None:
        """``folder``: the cluster's own, where keys and requests are stored before they are used."""
        self._folder = folder
        self._settings = settings
        self._calls = calls or Calls(settings.profile)
        self._known: dict[tuple[Any, ...], tuple[float, Any]] = {}
        self._lock = threading.RLock()
        self._ended_at: dict[str, float] = {}
        self._regions_of: dict[str, str] = {}
        """Of instances, as last listed."""

    # --- what there is ------------------------------------------------------------------------------------------

    def offers(self) -> tuple[Offer, ...]:
        """Regions in order; in each, types in the job's order, the cheapest zone first, on demand last."""
        return tuple(offer for region in self._settings.regions for offer in self._offers_in(region))

    def _offers_in(self, region: str) -> list[Offer]:
        types = self._settings.types
        zones = {place.zone for place in self.places(region)}
        prices = self._remembered(
            ("spot", region), SPOT_PRICES_S, lambda: market.spot_prices(self._calls, region, types)
        )
        in_order = sorted(prices, key=lambda price: (types.index(price.instance_type), price.now_usd_per_hour))
        offers = [self._offer(region, p.zone, p.instance_type, p.now_usd_per_hour) for p in in_order if p.zone in zones]
        if self._settings.on_demand_fallback:
            had = [(o.instance_type, o.zone) for o in offers]
            offers += [self._offer(region, zone, kind, None) for kind, zone in had]
        return offers

    def _offer(self, region: str, zone: str, instance_type: str, spot: float | None) -> Offer:
        """``spot`` None: on demand."""
        known = self.on_demand(region, instance_type)
        usual = known.usd_per_hour if known else spot or 0.0
        source = market.LIVE
        if known is None:
            source = f"{market.LIVE}, on demand unknown"
        elif known.source != market.LIVE:
            source = f"{market.LIVE}, on demand from {known.source}"
        return Offer(
            instance_type=instance_type,
            zone=zone,
            spot_usd_per_hour=usual if spot is None else spot,
            on_demand_usd_per_hour=max(usual, spot or 0.0),
            price_source=source,
            is_spot=spot is not None,
        )

    def places(self, region: str) -> tuple[Place, ...]:
        """Raises RequestRefusedError, CloudError."""
        settings = self._settings
        return self._remembered(
            ("places", region),
            PLACES_S,
            lambda: network.find_places(self._calls, region, settings.subnets, settings.zones),
        )

    def scores(self, num_nodes: int) -> dict[str, int]:
        """By zone, of 10: how likely so many are to be had there now. Empty where EC2 does not tell, or may not."""
        found: dict[str, int] = {}
        for region in self._settings.regions:
            by_id = {place.zone_id: place.zone for place in self.places(region)}
            question = requests.placement_scores(self._settings.types, num_nodes, region)
            try:
                told = self._calls.items(operations.PLACEMENT_SCORES, region, **question)
            except CloudError:
                continue
            found |= {
                by_id[one["AvailabilityZoneId"]]: one["Score"] for one in told if one["AvailabilityZoneId"] in by_id
            }
        return found

    def on_demand(self, region: str, instance_type: str) -> market.OnDemandPrice | None:
        return self._remembered(
            ("on demand", region, instance_type),
            LONG_S,
            lambda: market.on_demand_price(self._calls, region, instance_type),
        )

    def facts(self, region: str, instance_type: str) -> TypeFacts:
        """Raises RequestRefusedError for a type that the region does not know."""

        def ask() -> TypeFacts:
            found = self._calls.items(operations.TYPES, region, InstanceTypes=[instance_type])
            if not found:
                raise RequestRefusedError(f"{region} has no instance type {instance_type}")
            return facts_of(found[0])

        return self._remembered(("type", region, instance_type), LONG_S, ask)

    def image(self, region: str, instance_type: str) -> Image:
        facts = self.facts(region, instance_type)
        return self._remembered(
            ("image", region, instance_type),
            LONG_S,
            lambda: find_image(self._calls, region, self._settings.image, facts),
        )

    # --- renting ------------------------------------------------------------------------------------------------

    def create(self, offer: Offer, config: NodeConfig, token: str) -> Instance:
        """Raises also RequestRefusedError, NotPermittedError."""
        stored = launches.load(self._folder, token)
        if stored is None:
            stored = self._prepare(offer, config, token)
            launches.store(self._folder, token, stored)
        else:
            made = self._made(stored.region, token)
            if made is not None:
                return made
        return self._launch(offer, token, stored)

    def _launch(self, offer: Offer, token: str, stored: launches.Stored) -> Instance:
        """What is refused for sure is forgotten; of everything else it is unknown whether it took effect."""
        try:
            answer = self._calls.ask(operations.RUN, stored.region, **stored.request)
        except (CapacityError, QuotaError, CredentialsError, RequestRefusedError) as error:
            launches.forget(self._folder, token)
            if isinstance(error, RequestRefusedError):
                self._forget_known()
            raise self._explained(error, offer, stored.region) from error
        (described,) = answer["Instances"]
        instance = listing.instance_of(described, None, self._reach, public=self._is_public)
        self._regions_of[instance.instance_id] = stored.region
        return instance

    def _made(self, region: str, token: str) -> Instance | None:
        """By the tag of an earlier call whose answer was lost."""
        found = self._calls.items(operations.INSTANCES, region, Filters=requests.of_token(token))
        listed = listing.instances_of(found, {}, self._reach, public=self._is_public)
        return self._with_end(listed[0]) if listed else None

    def _prepare(self, offer: Offer, config: NodeConfig, token: str) -> launches.Stored:
        """Everything that the instance needs is there; and the request for it."""
        place = self._place(offer.zone)
        image = self.image(place.region, offer.instance_type)
        group_id = self._ensure(place, config.cluster_id)
        request = requests.run_instances(
            requests.Launch(
                cluster_id=config.cluster_id,
                node_id=config.node_id,
                token=token,
                region=place.region,
                zone=place.zone,
                instance_type=offer.instance_type,
                is_spot=offer.is_spot,
                max_price_usd_per_hour=self._settings.max_price_usd_per_hour,
                image_id=image.image_id,
                root_device=image.root_device,
                volume_gb=max(self._settings.volume_gb, image.root_gb),
                subnet_id=place.subnet_id,
                group_id=group_id,
                is_public=self._is_public,
                host_key=keys.host_key(self._folder, token),
            )
        )
        return launches.Stored(region=place.region, zone=place.zone, request=request)

    def _place(self, zone: str) -> Place:
        for region in self._settings.regions:
            if zone.startswith(region):
                for place in self.places(region):
                    if place.zone == zone:
                        return place
        raise RequestRefusedError(
            f"there is no subnet in zone {zone}", next_step="Correct `aws.zones` or `aws.subnets`."
        )

    def _ensure(self, place: Place, cluster_id: str) -> str:
        """The id of the group; looked at again now and then, since this machine's address may change."""

        def ensure() -> str:
            network.ensure_key(self._calls, place.region, cluster_id, keys.client_key(self._folder))
            return network.ensure_group(self._calls, place.region, cluster_id, place.vpc_id, self._ssh_from())

        return self._remembered(("group", place.region, cluster_id), PLACES_S, ensure)

    def _ssh_from(self) -> tuple[str, ...]:
        return (network.own_block(),) if self._settings.ssh_from is None else self._settings.ssh_from

    def _explained(self, error: CloudError, offer: Offer, region: str) -> CloudError:
        """With the zone and type that was asked for; of a quota, which one, and how much of it there is."""
        what = f"{offer.instance_type}{'' if offer.is_spot else ' on demand'} in {offer.zone}"
        quota = quota_of(offer.instance_type, spot=offer.is_spot)
        if isinstance(error, QuotaError) and quota is not None:
            there = self.quota(region, quota.code)
            amount = "its value may not be read" if there is None else f"{there:.0f} vCPUs"
            return QuotaError(
                f"{what}: the quota is used up: {quota.name} ({quota.code}), {amount}: {error.message}",
                next_step=how_to_raise(quota, region),
            )
        return type(error)(f"{what}: {error.message}", next_step=error.next_step)

    def quota(self, region: str, code: str) -> float | None:
        """In vCPUs; None where it may not be read, or is not known there."""
        try:
            answer = self._calls.call(
                operations.QUOTA,
                region,
                expected=("NoSuchResourceException",),
                ServiceCode="ec2",
                QuotaCode=code,
            )
        except CloudError:
            return None
        return None if answer is None else float(answer["Quota"]["Value"])

    # --- what was rented ----------------------------------------------------------------------------------------

    def instances(self, cluster_id: str) -> tuple[Instance, ...]:
        """In every region of the job: what was asked there may be listed late."""
        return tuple(
            instance for region in self._settings.regions for instance in self._instances_in(region, cluster_id)
        )

    def _instances_in(self, region: str, cluster_id: str) -> list[Instance]:
        filters = requests.of_cluster(cluster_id)
        found = self._calls.items(operations.INSTANCES, region, Filters=filters)
        statuses: dict[str, listing.SpotStatus] = {}
        if any(one.get("InstanceLifecycle") == "spot" for group in found for one in group.get("Instances", ())):
            statuses = listing.spot_statuses(self._calls.items(operations.SPOT_REQUESTS, region, Filters=filters))
        listed = listing.instances_of(found, statuses, self._reach, public=self._is_public)
        self._regions_of |= {instance.instance_id: region for instance in listed}
        return [self._with_end(instance) for instance in listed]

    def _with_end(self, instance: Instance) -> Instance:
        """EC2 may not say when an instance ended: then it was when we first saw that it had."""
        if instance.state is not InstanceState.TERMINATED or instance.ended_at is not None:
            return instance
        return replace(instance, ended_at=self._ended_at.setdefault(instance.instance_id, time.time()))

    def _reach(self, address: str, token: str) -> Reach | None:
        """None without the host key: only the folder that asked for the instance has it."""
        key = keys.known_host_key(self._folder, token)
        if key is None:
            return None
        settings = self._settings
        return Reach(address=address, user=settings.ssh_user, host_key=key.public, bastion=settings.bastion)

    @property
    def _is_public(self) -> bool:
        return self._settings.bastion is None

    # --- giving back --------------------------------------------------------------------------------------------

    def terminate(self, instance_ids: tuple[str, ...]) -> None:
        """Of several, one that is unknown makes EC2 refuse all: then one by one."""
        by_region: dict[str, list[str]] = {}
        for instance_id in instance_ids:
            for region in self._where(instance_id):
                by_region.setdefault(region, []).append(instance_id)
        for region, ids in by_region.items():
            try:
                self._calls.ask(operations.TERMINATE, region, InstanceIds=ids)
            except InstanceGoneError:
                for instance_id in ids:
                    self._terminate_if_there(region, instance_id)

    def _where(self, instance_id: str) -> tuple[str, ...]:
        known = self._regions_of.get(instance_id)
        return self._settings.regions if known is None else (known,)

    def _terminate_if_there(self, region: str, instance_id: str) -> None:
        try:
            self._calls.ask(operations.TERMINATE, region, InstanceIds=[instance_id])
        except InstanceGoneError:
            pass

    def left_behind(self, cluster_id: str) -> tuple[str, ...]:
        return sweep.left_behind(self._calls, self._settings.regions, cluster_id)

    def clean(self, cluster_id: str) -> None:
        sweep.clean(self._calls, self._settings.regions, cluster_id)
        self._forget_known()

    def retire(self) -> bool:
        """Nothing of it runs here; keys and requests of what is gone are of no use."""
        keys.forget_keys(self._folder)
        launches.forget_all(self._folder)
        return True

    # --- a preemption on purpose --------------------------------------------------------------------------------

    def preempt(self, instance_id: str, *, notice_s: float | None) -> None:
        """With notice: by AWS's fault injection service, two minutes ahead. At once: EC2 has no such thing, so the
        instance is terminated, which looks the same to everybody but the bill."""
        found = [
            (region, one)
            for region in self._where(instance_id)
            for group in self._described(region, instance_id)
            for one in group["Instances"]
        ]
        if not found or found[0][1]["State"]["Name"] in ("shutting-down", "terminated"):
            raise InstanceGoneError(f"{instance_id} is gone")
        region, described = found[0]
        if notice_s is None:
            self.terminate((instance_id,))
            return
        self._interrupt(region, described)

    def _described(self, region: str, instance_id: str) -> list[Any]:
        try:
            return self._calls.items(operations.INSTANCES, region, InstanceIds=[instance_id])
        except InstanceGoneError:
            return []

    def _interrupt(self, region: str, described: dict[str, Any]) -> None:
        role = self._settings.fault_injection_role
        if role is None:
            raise NotPermittedError(
                "EC2 gives a notice on purpose only through its fault injection service, which needs a role",
                next_step="Set `aws.fault_injection_role`, or take the node at once with `--no-notice`.",
            )
        if described.get("InstanceLifecycle") != "spot":
            raise CloudError(f"{described['InstanceId']} is rented on demand, which nobody takes away")
        account = self._calls.ask(operations.WHO_AM_I, region)["Account"]
        partition = role.split(":")[1]
        arn = f"arn:{partition}:ec2:{region}:{account}:instance/{described['InstanceId']}"
        token = f"{described['InstanceId']}-{int(time.time())}"
        made = self._calls.ask(operations.CREATE_EXPERIMENT, region, **requests.interruption(arn, role, token))
        template_id = made["experimentTemplate"]["id"]
        try:
            self._calls.ask(operations.START_EXPERIMENT, region, clientToken=token, experimentTemplateId=template_id)
        finally:
            self._calls.ask(operations.DELETE_EXPERIMENT, region, id=template_id)

    # --- memory -------------------------------------------------------------------------------------------------

    def _remembered(self, key: tuple[Any, ...], for_s: float, ask: Callable[[], _T]) -> _T:
        """One question at a time: 64 nodes that come together ask once."""
        with self._lock:
            known = self._known.get(key)
            now = time.monotonic()
            if known is None or now - known[0] > for_s:
                known = now, ask()
                self._known[key] = known
            answer: _T = known[1]
            return answer

    def _forget_known(self) -> None:
        """What is remembered may be why a request was refused."""
        with self._lock:
            self._known.clear()
