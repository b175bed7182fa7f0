"""The provider for EC2 spot instances. See docs/aws.md."""

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from bamboo_cli import keys
from bamboo_cli.errors import (
    CapacityError,
    CloudError,
    CredentialsError,
    InstanceGoneError,
    QuotaError,
    RequestRefusedError,
)
from bamboo_cli.keys import KeyPair
from bamboo_cli.providers.aws_cloud import interruption, launches, listing, network, operations, requests, sweep
from bamboo_cli.providers.aws_cloud.calls import Calls
from bamboo_cli.providers.aws_cloud.known import PLACES_S, AwsSettings, Known
from bamboo_cli.providers.aws_cloud.network import Place
from bamboo_cli.providers.aws_cloud.quotas import how_to_raise, quota_of
from bamboo_cli.providers.base import Instance, InstanceState, NodeConfig, Offer, Reach

FIRST_REGION = "us-east-1"
"""Knows of all others."""
LAUNCHES_AT_A_TIME = 8
"""EC2 takes two RunInstances a second, after a burst of five, before it throttles."""


def all_regions(profile: str | None) -> tuple[str, ...]:
    """That the account may use. Raises CloudError."""
    answer = Calls(profile).ask(operations.REGIONS, FIRST_REGION)
    return tuple(sorted(region["RegionName"] for region in answer["Regions"]))


class AwsProvider:
    name = "aws"
    poll_s = 5.0
    ends_within_s = 900.0

    def __init__(self, folder: Path, settings: AwsSettings) -> None:
        """``folder``: the cluster's own, where keys and requests are stored before they are used."""
        self._folder = folder
        self.settings = settings
        self.calls = Calls(settings.profile)
        self.known = Known(self.calls, settings)
        self._launching = threading.Semaphore(LAUNCHES_AT_A_TIME)
        self._ended_at: dict[str, float] = {}
        self._regions_of: dict[str, str] = {}
        """Of instances, as last listed."""

    def offers(self) -> tuple[Offer, ...]:
        return self.known.offers()

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
            with self._launching:
                answer = self.calls.ask(operations.RUN, stored.region, **stored.request)
        except (CapacityError, QuotaError, CredentialsError, RequestRefusedError) as error:
            launches.forget(self._folder, token)
            if isinstance(error, RequestRefusedError):
                self.known.forget()
            raise self._explained(error, offer, stored.region) from error
        (described,) = answer["Instances"]
        instance = listing.instance_of(described, None, self._reach, public=self._is_public)
        self._regions_of[instance.instance_id] = stored.region
        return instance

    def _made(self, region: str, token: str) -> Instance | None:
        """By the tag of an earlier call whose answer was lost."""
        found = self.calls.items(operations.INSTANCES, region, Filters=requests.of_token(token))
        listed = listing.instances_of(found, {}, self._reach, public=self._is_public)
        return self._with_end(listed[0]) if listed else None

    def _prepare(self, offer: Offer, config: NodeConfig, token: str) -> launches.Stored:
        """Everything that the instance needs is there; and the request for it."""
        place = self.known.place(offer.zone)
        group_id = self._ensure(place, config.cluster_id)
        host_key = keys.host_key(self._folder, token)
        request = self.request(offer, config.cluster_id, config.node_id, token, group_id, host_key)
        return launches.Stored(region=place.region, zone=place.zone, request=request)

    def request(
        self, offer: Offer, cluster_id: str, node_id: str, token: str, group_id: str | None, host_key: KeyPair
    ) -> requests.Request:
        """For RunInstances. ``group_id`` None: there is none yet. Raises RequestRefusedError, CloudError."""
        place = self.known.place(offer.zone)
        image = self.known.image(place.region, offer.instance_type)
        return requests.run_instances(
            requests.Launch(
                cluster_id=cluster_id,
                node_id=node_id,
                token=token,
                zone=place.zone,
                instance_type=offer.instance_type,
                is_spot=offer.is_spot,
                max_price_usd_per_hour=self.settings.max_price_usd_per_hour,
                image_id=image.image_id,
                root_device=image.root_device,
                volume_gb=max(self.settings.volume_gb, image.root_gb),
                subnet_id=place.subnet_id,
                group_id=group_id,
                is_public=self._is_public,
                host_key=host_key,
                instance_profile=self.settings.instance_profile,
            )
        )

    def _ensure(self, place: Place, cluster_id: str) -> str:
        """The id of the group; looked at again now and then, since this machine's address may change."""

        def ensure() -> str:
            network.ensure_key(self.calls, place.region, cluster_id, keys.client_key(self._folder))
            return network.ensure_group(self.calls, place.region, cluster_id, place.vpc_id, self.ssh_from())

        return self.known.remembered(("group", place.region, cluster_id), PLACES_S, ensure)

    def ssh_from(self) -> tuple[str, ...]:
        """Raises CloudError where this machine's address cannot be found out."""
        return (network.own_block(),) if self.settings.ssh_from is None else self.settings.ssh_from

    def _explained(self, error: CloudError, offer: Offer, region: str) -> CloudError:
        """With the zone and type that was asked for; of a quota, which one, and how much of it there is."""
        what = f"{offer.instance_type}{'' if offer.is_spot else ' on demand'} in {offer.zone}"
        quota = quota_of(offer.instance_type, spot=offer.is_spot)
        if isinstance(error, QuotaError) and quota is not None:
            there = self.known.quota(region, quota.code)
            amount = "its value may not be read" if there is None else f"{there:.0f} vCPUs"
            return QuotaError(
                f"{what}: the quota is used up: {quota.name} ({quota.code}), {amount}: {error.message}",
                next_step=how_to_raise(quota, region),
            )
        return type(error)(f"{what}: {error.message}", next_step=error.next_step)

    # --- what was rented ----------------------------------------------------------------------------------------

    def instances(self, cluster_id: str) -> tuple[Instance, ...]:
        """In every region that was ever asked for one, so that trouble in the others is none of ours."""
        return tuple(instance for region in self._asked() for instance in self._instances_in(region, cluster_id))

    def _asked(self) -> tuple[str, ...]:
        """All, unless this is who asks: then what it stored before it did is what counts."""
        stored = launches.regions(self._folder) if self.settings.types else frozenset()
        return tuple(region for region in self.settings.regions if not stored or region in stored)

    def _instances_in(self, region: str, cluster_id: str) -> list[Instance]:
        filters = requests.of_cluster(cluster_id)
        found = self.calls.items(operations.INSTANCES, region, Filters=filters)
        statuses: dict[str, listing.SpotStatus] = {}
        if any(one.get("InstanceLifecycle") == "spot" for group in found for one in group.get("Instances", ())):
            statuses = listing.spot_statuses(self.calls.items(operations.SPOT_REQUESTS, region, Filters=filters))
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
        settings = self.settings
        return Reach(address=address, user=settings.ssh_user, host_key=key.public, bastion=settings.bastion)

    @property
    def _is_public(self) -> bool:
        return self.settings.bastion is None

    # --- giving back --------------------------------------------------------------------------------------------

    def terminate(self, instance_ids: tuple[str, ...]) -> None:
        """Of several, one that is unknown makes EC2 refuse all: then one by one."""
        by_region: dict[str, list[str]] = {}
        for instance_id in instance_ids:
            for region in self._where(instance_id):
                by_region.setdefault(region, []).append(instance_id)
        for region, ids in by_region.items():
            try:
                self.calls.ask(operations.TERMINATE, region, InstanceIds=ids)
            except InstanceGoneError:
                for instance_id in ids:
                    self._terminate_if_there(region, instance_id)

    def _where(self, instance_id: str) -> tuple[str, ...]:
        known = self._regions_of.get(instance_id)
        return self.settings.regions if known is None else (known,)

    def _terminate_if_there(self, region: str, instance_id: str) -> None:
        try:
            self.calls.ask(operations.TERMINATE, region, InstanceIds=[instance_id])
        except InstanceGoneError:
            pass

    def left_behind(self, cluster_id: str) -> tuple[str, ...]:
        return sweep.left_behind(self.calls, self.settings.regions, cluster_id)

    def clean(self, cluster_id: str) -> None:
        sweep.clean(self.calls, self.settings.regions, cluster_id)
        self.known.forget()

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
        interruption.interrupt(self.calls, region, described, self.settings.fault_injection_role)

    def _described(self, region: str, instance_id: str) -> list[Any]:
        try:
            return self.calls.items(operations.INSTANCES, region, InstanceIds=[instance_id])
        except InstanceGoneError:
            return []
