"""What EC2's errors mean to us: the whole map, so that a change of it is a change of this file."""

import pytest

from bamboo_cli.coordinator.events import CreateFault
from bamboo_cli.coordinator.faults import fault_of
from bamboo_cli.errors import BambooError
from bamboo_cli.providers.aws_cloud.codes import CODES, NEXT_STEPS, Meaning, error_of, meaning_of
from bamboo_cli.providers.aws_cloud.operations import RUN, TERMINATE
from bamboo_cli.providers.aws_cloud.quotas import quota_of
from tests.aws import market

MAP = {
    Meaning.CAPACITY: """
        IdempotentInstanceTerminated InsufficientAddressCapacity InsufficientCapacity InsufficientFreeAddressesInSubnet
        InsufficientHostCapacity InsufficientInstanceCapacity InsufficientVolumeCapacity SpotMaxPriceTooLow
        UnfulfillableCapacity Unsupported
    """,
    Meaning.QUOTA: """
        InstanceLimitExceeded MaxSpotInstanceCountExceeded NetworkInterfaceLimitExceeded PendingVerification
        RulesPerSecurityGroupLimitExceeded SecurityGroupLimitExceeded SpotInstanceCountExceeded VcpuLimitExceeded
        VolumeLimitExceeded
    """,
    Meaning.CREDENTIALS: """
        AuthFailure ExpiredToken ExpiredTokenException IncompleteSignature InvalidAccessKeyId InvalidClientTokenId
        MissingAuthenticationToken RequestExpired SignatureDoesNotMatch UnrecognizedClientException
    """,
    Meaning.PERMISSION: "AccessDenied AccessDeniedException UnauthorizedOperation",
    Meaning.REFUSED: """
        Blocked DefaultVpcDoesNotExist DependencyViolation EncryptedVolumesNotSupported IdempotentParameterMismatch
        InvalidAMIID.Malformed InvalidAMIID.NotFound InvalidAMIID.Unavailable InvalidBlockDeviceMapping
        InvalidGroup.InUse InvalidGroup.NotFound InvalidInput InvalidInstanceType InvalidKey.Format
        InvalidKeyPair.NotFound InvalidNetworkInterface.InUse InvalidParameter InvalidParameterCombination
        InvalidParameterValue InvalidSubnet InvalidSubnetID.NotFound InvalidUserData.Malformed MissingParameter
        NoSuchResourceException OperationNotPermitted OptInRequired ParameterNotFound ResourceNotFoundException
        UnsupportedOperation VPCIdNotSpecified VolumeInUse
    """,
    Meaning.GONE: "InvalidInstanceID.Malformed InvalidInstanceID.NotFound",
    Meaning.THROTTLED: """
        EC2ThrottledException RequestLimitExceeded RequestThrottled Throttling ThrottlingException
        TooManyRequestsException
    """,
    Meaning.TROUBLE: "InternalError InternalFailure RequestTimeout ServiceUnavailable Unavailable",
}
FAULTS = {
    Meaning.CAPACITY: CreateFault.CAPACITY,
    Meaning.QUOTA: CreateFault.QUOTA,
    Meaning.CREDENTIALS: CreateFault.CREDENTIALS,
    Meaning.PERMISSION: CreateFault.CREDENTIALS,
    Meaning.REFUSED: CreateFault.REFUSED,
    Meaning.THROTTLED: CreateFault.CLOUD,
    Meaning.TROUBLE: CreateFault.CLOUD,
}
"""What the coordinator makes of it: CLOUD alone sends the same request again."""


def test_this_is_the_whole_map() -> None:
    assert {code: meaning for meaning, codes in MAP.items() for code in codes.split()} == CODES
    assert set(NEXT_STEPS) <= set(CODES)


@pytest.mark.parametrize("code", sorted(CODES))
def test_an_error_tells_the_code_what_was_tried_and_what_to_do(code: str) -> None:
    error = error_of(RUN, "us-east-1", code, "says EC2")

    assert isinstance(error, BambooError)
    assert code in error.message and "ec2:RunInstances" in error.message and "us-east-1" in error.message
    assert error.next_step or CODES[code] is Meaning.GONE
    if CODES[code] in FAULTS:
        assert fault_of(error) is FAULTS[CODES[code]]


def test_what_is_unknown_is_trouble_and_told_as_it_is() -> None:
    assert meaning_of("NeverHeardOf") is Meaning.TROUBLE
    assert "NeverHeardOf: new words" in error_of(TERMINATE, "eu-west-1", "NeverHeardOf", "new words").message


def test_older_spellings_are_known_too() -> None:
    assert meaning_of("Server.InsufficientInstanceCapacity") is Meaning.CAPACITY
    assert meaning_of("Client.UnauthorizedOperation") is Meaning.PERMISSION


@pytest.mark.parametrize(
    ("instance_type", "spot", "on_demand"),
    [
        ("g5.xlarge", "L-3819A6DF", "L-DB2E81BA"),
        ("gr6.4xlarge", "L-3819A6DF", "L-DB2E81BA"),
        ("p4d.24xlarge", "L-7212CCBC", "L-417A185B"),
        ("p5en.48xlarge", "L-C4BD4855", "L-417A185B"),
        ("c7i.large", "L-34B43A08", "L-1216C47A"),
        ("trn1.2xlarge", "L-6B0D517C", "L-2C3B7624"),
        ("inf2.xlarge", "L-B5D1601B", "L-1945791B"),
        ("x2idn.16xlarge", "L-E3A00192", "L-7295265B"),
        ("dl1.24xlarge", "L-85EED4F7", "L-6E869C2A"),
        ("u-6tb1.metal", None, None),
    ],
)
def test_every_family_has_its_quota(instance_type: str, spot: str | None, on_demand: str | None) -> None:
    codes = [
        quota and quota.code for quota in (quota_of(instance_type, spot=True), quota_of(instance_type, spot=False))
    ]

    assert codes == [spot, on_demand]


@pytest.mark.parametrize(
    "kind", ["g6e.xlarge", "p3.2xlarge", "p5.48xlarge", "trn1.2xlarge", "inf2.xlarge", "m7i.large"]
)
def test_a_quota_is_called_as_service_quotas_calls_it(kind: str) -> None:
    """Whose names and codes the double has, from what accounts listed."""
    for spot in (True, False):
        quota = quota_of(kind, spot=spot)
        assert quota is not None
        assert (quota.code, quota.name) == (
            market.quota_code(kind, is_spot=spot),
            market.QUOTA_NAMES[market.quota_code(kind, is_spot=spot)],
        )
