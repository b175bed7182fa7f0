"""moto's EC2, completed and corrected where it differs from the real one. Each correction has a test in test_ec2.py."""

import json
from typing import Any, ClassVar

from moto.core.responses import ActionResult, EmptyResult
from moto.ec2.exceptions import DryRunClientError, EC2ClientError
from moto.ec2.models.amis import Ami
from moto.ec2.models.instances import Instance, InstanceState
from moto.ec2.responses import EC2Response
from moto.ec2.utils import filter_dict_attribute_mapping

from tests.aws import launching, lives, market
from tests.aws.account import REGIONS, Account, Life
from tests.aws.filters import passes

PAGE = 1000

# Filters that moto answers with a page of HTML.
filter_dict_attribute_mapping.update(
    {
        "client-token": "client_token",
        "instance-lifecycle": "lifecycle",
        "spot-instance-request-id": "spot_instance_request_id",
        "instance-state-code": "state_code_text",
        "reservation-id": "reservation_id",
    }
)


# moto says 15 GB of every image.
ROOT_GB = {"Deep Learning": 75, "ubuntu": 8}


def _root_volume(image: Ami) -> list[dict[str, Any]]:
    size = next(size for words, size in ROOT_GB.items() if words in str(image.name))
    volume = {"SnapshotId": image.ebs_snapshot.id, "VolumeSize": size, "DeleteOnTermination": True, "VolumeType": "gp2"}
    return [{"DeviceName": image.root_device_name, "Ebs": volume}]


Ami.block_device_mappings = property(_root_volume)


class Ec2(EC2Response):
    """One object per request, made by moto; ``account`` is the double's."""

    account: ClassVar[Account]

    RESPONSE_KEY_PATH_TO_TRANSFORMER: ClassVar[dict[str, Any]] = {
        key: value
        for key, value in EC2Response.RESPONSE_KEY_PATH_TO_TRANSFORMER.items()
        if key != "RunInstances.Reservation.Instances.Instance.State"
    }
    """An instance's state is what ``lives`` says, in every answer."""

    # --- instances ---

    def run_instances(self) -> ActionResult:
        token = self._get_param("ClientToken")
        arguments = json.dumps(self.params, sort_keys=True, default=str)
        known = self.account.reservations.get((self.region, token))
        if known is not None:
            if known[0] != arguments:
                raise EC2ClientError(
                    "IdempotentParameterMismatch",
                    "The client token you have provided is associated with a resource with different parameters.",
                )
            return ActionResult(self.ec2_backend.reservations[known[1]])
        launch = launching.check(self.params, self.account, self.ec2_backend, self.region)
        if self._get_param("DryRun"):
            raise DryRunClientError
        self.params["MinCount"] = launching.count(launch, self.account, self.region)
        self.params["SubnetId"] = launch.subnet_id  # moto puts an instance of no subnet outside of any
        self.params.pop("NetworkInterfaces", None)
        self.params.pop("IamInstanceProfile", None)  # moto would ask its IAM, in which nothing is
        self.params["SecurityGroupIds"] = list(launch.group_ids)
        self.params["AssociatePublicIpAddress"] = launch.has_public_address
        reservation = super().run_instances()._result  # type: ignore[attr-defined]
        for instance in reservation.instances:
            instance.reservation_id = reservation.id
            lives.begin(self.account, self.ec2_backend, instance, launch)
        if token:
            self.account.reservations[(self.region, token)] = (arguments, reservation.id)
        return ActionResult(reservation)

    def describe_instances(self) -> ActionResult:
        self._refuse_unseen(self._get_param("InstanceIds", []))
        result = super().describe_instances()
        found: dict[str, Any] = result._result  # type: ignore[attr-defined]
        for reservation in found["Reservations"]:  # copies, made by moto
            reservation.instances = [i for i in reservation.instances if self._is_seen(i.id)]
        found["Reservations"] = [r for r in found["Reservations"] if r.instances]
        return result

    def describe_instance_status(self) -> ActionResult:
        self._refuse_unseen(self._get_param("InstanceIds", []))
        return super().describe_instance_status()

    def terminate_instances(self) -> ActionResult:
        ids: list[str] = self._get_param("InstanceIds", [])
        self._refuse_unseen(ids)
        lives_asked = [self.account.lives[i] for i in ids if i in self.account.lives]
        if len(lives_asked) < len(ids):
            return super().terminate_instances()  # which raises before it ends any
        before = {i: InstanceState(*_state(self.ec2_backend.get_instance(i))) for i in ids}
        alive = [life for life in lives_asked if life.ended_at is None]
        if alive:
            self.params["InstanceIds"] = [life.instance_id for life in alive]
            super().terminate_instances()
        for life in alive:
            lives.terminate(self.account, self.ec2_backend, life)
        after = {i: InstanceState(*_state(self.ec2_backend.get_instance(i))) for i in ids}
        changes = [{"InstanceId": i, "PreviousState": before[i], "CurrentState": after[i]} for i in ids]
        return ActionResult({"TerminatingInstances": changes})

    def stop_instances(self) -> ActionResult:
        for instance_id in self._get_param("InstanceIds", []):
            life = self.account.lives.get(instance_id)
            if life is not None and life.is_spot:
                raise EC2ClientError(
                    "UnsupportedOperation",
                    f"You can't stop the Spot Instance '{instance_id}' because it is associated with a one-time Spot "
                    "Instance request. You can only stop Spot Instances associated with persistent Spot Instance "
                    "requests.",
                )
        return super().stop_instances()

    def create_tags(self) -> EmptyResult:
        self._refuse_unseen(self._get_param("Resources", []))
        return super().create_tags()

    # --- spot ---

    def describe_spot_instance_requests(self) -> ActionResult:
        there = self.account.spot_requests.get(self.region, {})
        asked = self._get_param("SpotInstanceRequestIds", [])
        self._refuse_unknown_requests(asked)
        filters = self._filters_from_querystring()
        found = [r for r in there.values() if (not asked or r["SpotInstanceRequestId"] in asked) and passes(r, filters)]
        return ActionResult({"SpotInstanceRequests": found})

    def cancel_spot_instance_requests(self) -> ActionResult:
        asked = self._get_param("SpotInstanceRequestIds", [])
        self._refuse_unknown_requests(asked)
        done = []
        for request_id in asked:
            request = self.account.spot_requests[self.region][request_id]
            if request["State"] in ("open", "active"):
                lives.close_request(request, "cancelled", "request-canceled-and-instance-running", self.account.now())
            done.append({"SpotInstanceRequestId": request_id, "State": request["State"]})
        return ActionResult({"CancelledSpotInstanceRequests": done})

    def describe_spot_price_history(self) -> ActionResult:
        kinds = self._get_param("InstanceTypes", [])
        filters = dict(self._filters_from_querystring())
        kinds = kinds or filters.get("instance-type", [])
        products = self._get_param("ProductDescriptions", []) or filters.get("product-description", [])
        zone = self._get_param("AvailabilityZone")
        zones = [zone] if zone else filters.get("availability-zone", [])
        for name in filters:
            if name not in ("instance-type", "product-description", "availability-zone"):
                raise EC2ClientError("InvalidParameterValue", f"The filter '{name}' is invalid")
        for kind in kinds:
            launching.refuse_unknown_type(kind)
        now = self.account.now()
        start = self._get_param("StartTime")
        end = self._get_param("EndTime")
        points = [
            {
                "AvailabilityZone": point.zone,
                "InstanceType": point.instance_type,
                "ProductDescription": point.product,
                "SpotPrice": f"{point.usd:.6f}",
                "Timestamp": lives.timestamp(point.at),
            }
            for kind in kinds or market.types_in(self.region)
            for there in market.zones_with(self.region, kind)
            if not zones or there in zones
            for point in launching.prices_in(
                self.account.spot_prices(kind, there, now),
                start=now if start is None else launching.seconds(start),
                end=now if end is None else launching.seconds(end),
            )
            if not products or point.product in [p.removesuffix(" (Amazon VPC)") for p in products]
        ]
        points.sort(key=lambda point: point["Timestamp"], reverse=True)
        first = int(self._get_param("NextToken") or 0)
        size = int(self._get_param("MaxResults") or PAGE)
        more = str(first + size) if first + size < len(points) else ""
        return ActionResult({"SpotPriceHistory": points[first : first + size], "NextToken": more})

    def get_spot_placement_scores(self) -> ActionResult:
        if not self._get_param("SingleAvailabilityZone"):
            self.account.unsupported.append("GetSpotPlacementScores of whole regions")
        kinds = self._get_param("InstanceTypes", [])
        scores = [
            {
                "Region": self.region,
                "AvailabilityZoneId": zone.zone_id,
                "Score": self.account.placement_scores.get(zone.name, 7),
            }
            for zone in self.ec2_backend.describe_availability_zones()
            if any(zone.name in market.zones_with(self.region, kind) for kind in kinds)
        ]
        scores.sort(key=lambda score: -score["Score"])
        return ActionResult({"SpotPlacementScores": scores[:10]})

    def describe_regions(self) -> ActionResult:
        result = super().describe_regions()
        found: dict[str, Any] = result._result  # type: ignore[attr-defined]
        every = str(self._get_param("AllRegions", "")).lower() == "true"
        told = [self._as_seen(region) for region in found["Regions"] if region.name in REGIONS]
        found["Regions"] = [region for region in told if every or region["OptInStatus"] != "not-opted-in"]
        return result

    def _as_seen(self, region: Any) -> dict[str, str]:
        opted = "not-opted-in" if region.name in self.account.not_enabled else region.opt_in_status
        return {"RegionName": region.name, "Endpoint": region.endpoint, "OptInStatus": opted}

    # --- groups ---

    def delete_security_group(self) -> EmptyResult:
        group_id = self._get_param("GroupId")
        if group_id and lives.uses_of_group(self.ec2_backend, group_id):
            raise EC2ClientError("DependencyViolation", f"resource {group_id} has a dependent object")
        return super().delete_security_group()

    def authorize_security_group_ingress(self) -> ActionResult:
        result = super().authorize_security_group_ingress()
        lives.apply_groups(self.account, self.ec2_backend)
        return result

    def revoke_security_group_ingress(self) -> ActionResult:
        result = super().revoke_security_group_ingress()
        lives.apply_groups(self.account, self.ec2_backend)
        return result

    # --- what is not there yet ---

    def _is_seen(self, instance_id: str) -> bool:
        life: Life | None = self.account.lives.get(instance_id)
        return life is None or life.visible_at <= self.account.now()

    def _refuse_unseen(self, ids: list[str]) -> None:
        unseen = [i for i in ids if i.startswith("i-") and not self._is_seen(i)]
        if unseen:
            raise EC2ClientError("InvalidInstanceID.NotFound", f"The instance ID '{unseen[0]}' does not exist")

    def _refuse_unknown_requests(self, ids: list[str]) -> None:
        there = self.account.spot_requests.get(self.region, {})
        unknown = [i for i in ids if i not in there]
        if unknown:
            raise EC2ClientError(
                "InvalidSpotInstanceRequestID.NotFound", f"The spot instance request ID '{unknown[0]}' does not exist"
            )


def _state(instance: Instance) -> tuple[str, int]:
    return instance.state, instance.state_code
