"""The provider for EC2 spot instances. See docs/aws.md."""

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
    ThrottledError,
)
from bamboo_cli.keys import KeyPair
from bamboo_cli.providers.aws_cloud import (
    interruption,
    launches,
    listing,
    network,
    operations,
    regions,
    requests,
    sweep,
)
from bamboo_cli.providers.aws_cloud.calls import Calls
from bamboo_cli.providers.aws_cloud.known import PLACES_S, AwsSettings, Known
from bamboo_cli.providers.aws_cloud.marked import marked
from bamboo_cli.providers.aws_cloud.network import Place
from bamboo_cli.providers.aws_cloud.pace import Pace
from bamboo_cli.providers.aws_cloud.quotas import how_to_raise, quota_of
from bamboo_cli.providers.base import Instance, InstanceState, NodeConfig, Offer, Reach

THROTTLED_S = 60.0
"""For so long a request that EC2 has no time for waits for its turn again, before that is told."""


class AwsProvider:
    name = "aws"
    poll_s = 5.0
    ends_within_s = 900.0
    unlisted_s = 120.0

    def __init__(self, folder: Path, settings: AwsSettings, calls: Calls | None = None) -> None:
        """``folder``: the cluster's own, where keys and requests are stored before they are used. ``calls``: another's,
        to share what it has loaded."""
        self._folder = folder
        self.settings = settings
        self.calls = calls or Calls(settings.profile)
        self.known = Known(self.calls, settings)
        self._paces: dict[str, Pace] = {}
        """By region."""
        self._ended_at: dict[str, float] = {}
        self._regions_of: dict[str, str] = {}
        """Of instances, as last listed."""

    def offers(self) -> tuple[Offer, ...]:
        return self.known.offers()

    # --- renting ------------------------------------------------------------------------------------------------

    def create(self, offer: Offer, config: NodeConfig, token: str) -> Instance:
        """Raises also RequestRefusedError, NotPermittedError."""
        stored = launches.load(self._folder, token)
        if stored is not None:
            return self._repeated(offer, token, stored)
        stored = self._prepare(offer, config, token)
        launches.store(self._folder, token, stored)
        return self._launch(offer, token, stored)

    def _repeated(self, offer: Offer, token: str, stored: launches.Stored) -> Instance:
        """That AWS does not know us any more says nothing of the request that was sent when it did."""
        try:
            return self._made(stored.region, token) or self._launch(offer, token, stored, repeated=True)
        except CredentialsError as error:
            raise CloudError(
                f"it is not known what came of an earlier request: {error.message}", next_step=error.next_step
            ) from error

    def _launch(self, offer: Offer, token: str, stored: launches.Stored, *, repeated: bool = False) -> Instance:
        """What is refused for sure is forgotten; of everything else it is unknown whether it took effect."""
        try:
            answer = self._sent_in_turn(stored)
        except (CapacityError, QuotaError, CredentialsError, RequestRefusedError) as error:
            if not (repeated and isinstance(error, CredentialsError)):
                launches.forget(self._folder, token)
            if isinstance(error, RequestRefusedError):
                self.known.forget()
            raise self._explained(error, offer, stored.region) from error
        (described,) = answer["Instances"]
        instance = listing.instance_of(described, None, self._reach, public=self._is_public)
        self._regions_of[instance.instance_id] = stored.region
        return instance

    def _sent_in_turn(self, stored: launches.Stored) -> dict[str, Any]:
        """A request that is throttled has no effect, and is sent again as it is. Raises CloudError."""
        pace = self._paces.setdefault(stored.region, Pace())  # atomic: all threads have the same
        give_up_at = time.monotonic() + THROTTLED_S
        while True:
            pace.take()
            try:
                answer = self.calls.ask(operations.RUN, stored.region, **stored.request)
            except ThrottledError:
                pace.refused()
                if time.monotonic() > give_up_at:
                    raise
            else:
                pace.accepted()
                return answer

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

    def parts(self) -> "tuple[AwsProvider, ...]":
        each = (replace(self.settings, regions=(region,)) for region in self._in_reach())
        return tuple(AwsProvider(self._folder, settings, self.calls) for settings in each)

    def _asked(self) -> tuple[str, ...]:
        """All, unless this is who asks: then what it stored before it did is what counts."""
        stored = launches.regions(self._folder) if self.settings.types else frozenset()
        return tuple(region for region in self.settings.regions if region in stored) or self._in_reach()

    def _in_reach(self) -> tuple[str, ...]:
        """In a region that the account has not enabled there is nothing, unless one was asked for there."""
        stored, wanted = launches.regions(self._folder), self.settings.regions
        if len(wanted) == 1 or stored >= frozenset(wanted):
            return wanted
        try:
            enabled = self.known.remembered(("regions",), PLACES_S, lambda: regions.all_regions(self.calls))
        except CloudError:
            return wanted
        return tuple(region for region in wanted if region in stored or region in enabled)

    def _instances_in(self, region: str, cluster_id: str) -> list[Instance]:
        try:
            found = marked(self.calls, operations.INSTANCES, region, cluster_id)
        except CredentialsError as error:
            raise regions.explained(self.calls, region, error) from error
        statuses: dict[str, listing.SpotStatus] = {}
        if any(one.get("InstanceLifecycle") == "spot" for group in found for one in group.get("Instances", ())):
            statuses = listing.spot_statuses(marked(self.calls, operations.SPOT_REQUESTS, region, cluster_id))
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
        return sweep.left_behind(self.calls, self._in_reach(), cluster_id)

    def clean(self, cluster_id: str) -> None:
        sweep.clean(self.calls, self._in_reach(), cluster_id)
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
