"""What AWS's error codes mean to us: one table, and the only place that knows them. Pure.

Capacity: another zone or type may have it. Quota: nothing more in that region. Refused: asking again does not help.
Throttled, trouble, and whatever is not in the table: the same request again, later.
"""

from enum import StrEnum

from bamboo_cli.errors import (
    CapacityError,
    CloudError,
    CredentialsError,
    InstanceGoneError,
    NotPermittedError,
    QuotaError,
    RequestRefusedError,
    ThrottledError,
)
from bamboo_cli.providers.aws_cloud.operations import Operation


class Meaning(StrEnum):
    CAPACITY = "capacity"
    QUOTA = "quota"
    CREDENTIALS = "credentials"
    PERMISSION = "permission"
    REFUSED = "refused"
    GONE = "gone"
    THROTTLED = "throttled"
    TROUBLE = "trouble"


CODES: dict[str, Meaning] = {
    "InsufficientInstanceCapacity": Meaning.CAPACITY,
    "InsufficientHostCapacity": Meaning.CAPACITY,
    "InsufficientCapacity": Meaning.CAPACITY,
    "InsufficientAddressCapacity": Meaning.CAPACITY,
    "InsufficientVolumeCapacity": Meaning.CAPACITY,
    "InsufficientFreeAddressesInSubnet": Meaning.CAPACITY,
    "UnfulfillableCapacity": Meaning.CAPACITY,
    "SpotMaxPriceTooLow": Meaning.CAPACITY,
    "Unsupported": Meaning.CAPACITY,  # the zone does not have the type
    "IdempotentInstanceTerminated": Meaning.CAPACITY,  # the token's instance came and went: a new token is needed
    "MaxSpotInstanceCountExceeded": Meaning.QUOTA,
    "SpotInstanceCountExceeded": Meaning.QUOTA,
    "VcpuLimitExceeded": Meaning.QUOTA,
    "InstanceLimitExceeded": Meaning.QUOTA,
    "VolumeLimitExceeded": Meaning.QUOTA,
    "NetworkInterfaceLimitExceeded": Meaning.QUOTA,
    "SecurityGroupLimitExceeded": Meaning.QUOTA,
    "RulesPerSecurityGroupLimitExceeded": Meaning.QUOTA,
    "PendingVerification": Meaning.QUOTA,  # an account in its first hours
    "AuthFailure": Meaning.CREDENTIALS,
    "ExpiredToken": Meaning.CREDENTIALS,
    "ExpiredTokenException": Meaning.CREDENTIALS,
    "IncompleteSignature": Meaning.CREDENTIALS,
    "InvalidAccessKeyId": Meaning.CREDENTIALS,
    "InvalidClientTokenId": Meaning.CREDENTIALS,
    "MissingAuthenticationToken": Meaning.CREDENTIALS,
    "RequestExpired": Meaning.CREDENTIALS,  # signed by a clock that is wrong, or with a token that has run out
    "SignatureDoesNotMatch": Meaning.CREDENTIALS,
    "UnrecognizedClientException": Meaning.CREDENTIALS,
    "AccessDenied": Meaning.PERMISSION,
    "AccessDeniedException": Meaning.PERMISSION,
    "UnauthorizedOperation": Meaning.PERMISSION,
    "Blocked": Meaning.REFUSED,
    "DefaultVpcDoesNotExist": Meaning.REFUSED,
    "DependencyViolation": Meaning.REFUSED,
    "EncryptedVolumesNotSupported": Meaning.REFUSED,
    "IdempotentParameterMismatch": Meaning.REFUSED,
    "InvalidAMIID.Malformed": Meaning.REFUSED,
    "InvalidAMIID.NotFound": Meaning.REFUSED,
    "InvalidAMIID.Unavailable": Meaning.REFUSED,
    "InvalidBlockDeviceMapping": Meaning.REFUSED,
    "InvalidGroup.InUse": Meaning.REFUSED,
    "InvalidGroup.NotFound": Meaning.REFUSED,
    "InvalidInput": Meaning.REFUSED,
    "InvalidInstanceType": Meaning.REFUSED,
    "InvalidKey.Format": Meaning.REFUSED,
    "InvalidKeyPair.NotFound": Meaning.REFUSED,
    "InvalidParameter": Meaning.REFUSED,
    "InvalidParameterCombination": Meaning.REFUSED,
    "InvalidParameterValue": Meaning.REFUSED,
    "InvalidSubnet": Meaning.REFUSED,
    "InvalidSubnetID.NotFound": Meaning.REFUSED,
    "InvalidUserData.Malformed": Meaning.REFUSED,
    "MissingParameter": Meaning.REFUSED,
    "OperationNotPermitted": Meaning.REFUSED,  # protected against termination
    "OptInRequired": Meaning.REFUSED,
    "ParameterNotFound": Meaning.REFUSED,
    "NoSuchResourceException": Meaning.REFUSED,
    "ResourceNotFoundException": Meaning.REFUSED,
    "UnsupportedOperation": Meaning.REFUSED,
    "VPCIdNotSpecified": Meaning.REFUSED,
    "VolumeInUse": Meaning.REFUSED,
    "InvalidNetworkInterface.InUse": Meaning.REFUSED,
    "InvalidInstanceID.Malformed": Meaning.GONE,
    "InvalidInstanceID.NotFound": Meaning.GONE,
    "EC2ThrottledException": Meaning.THROTTLED,
    "RequestLimitExceeded": Meaning.THROTTLED,
    "RequestThrottled": Meaning.THROTTLED,
    "Throttling": Meaning.THROTTLED,
    "ThrottlingException": Meaning.THROTTLED,
    "TooManyRequestsException": Meaning.THROTTLED,
    "InternalError": Meaning.TROUBLE,
    "InternalFailure": Meaning.TROUBLE,
    "RequestTimeout": Meaning.TROUBLE,
    "ServiceUnavailable": Meaning.TROUBLE,
    "Unavailable": Meaning.TROUBLE,
}

NEXT_STEPS: dict[str, str] = {
    "SpotMaxPriceTooLow": "Raise `aws.max_price_usd_per_hour`, or leave it out: the price on demand is the limit then.",
    "InsufficientFreeAddressesInSubnet": "Give other or larger `aws.subnets`.",
    "PendingVerification": "AWS checks new accounts for some hours; nothing but waiting helps.",
    "RequestExpired": "Check this machine's clock, then log in again: `aws sso login`, or new keys.",
    "SignatureDoesNotMatch": "Check the secret key, and this machine's clock.",
    "OptInRequired": "Enable the region, or accept the image's terms, in the AWS console.",
    "Blocked": "Ask AWS support why the account is blocked.",
    "OperationNotPermitted": "It is protected against termination: lift that in the EC2 console.",
    "InvalidGroup.NotFound": "Somebody deleted the cluster's group; it is made again at the next try.",
    "InvalidKeyPair.NotFound": "Somebody deleted the cluster's key pair; it is made again at the next try.",
    "DefaultVpcDoesNotExist": "`aws ec2 create-default-vpc` makes one; or give `aws.subnets`.",
    "VPCIdNotSpecified": "There is no default VPC: `aws ec2 create-default-vpc`, or give `aws.subnets`.",
    "InvalidInstanceType": "Correct `aws.types`: no region has all; `bamboo prices` shows usual ones.",
    "InvalidAMIID.NotFound": "Check `aws.image`: an image is in one region only.",
}

_USUAL_NEXT_STEPS: dict[Meaning, str] = {
    Meaning.CAPACITY: "Give more `aws.types` or `aws.regions`, or allow `aws.on_demand_fallback`.",
    Meaning.QUOTA: "Ask for more in the Service Quotas console, or take another region.",
    Meaning.CREDENTIALS: "Log in again (`aws sso login`, or new keys), or choose another `aws.profile`.",
    Meaning.REFUSED: "Correct the `aws` section of the job; `bamboo check aws` looks at all of it.",
    Meaning.GONE: "",
    Meaning.THROTTLED: "It is asked again later; nothing has to be done.",
    Meaning.TROUBLE: "It is asked again later; https://health.aws.amazon.com/health/status may tell more.",
}

_ERRORS: dict[Meaning, type[CloudError]] = {
    Meaning.CAPACITY: CapacityError,
    Meaning.QUOTA: QuotaError,
    Meaning.CREDENTIALS: CredentialsError,
    Meaning.PERMISSION: NotPermittedError,
    Meaning.REFUSED: RequestRefusedError,
    Meaning.GONE: InstanceGoneError,
    Meaning.THROTTLED: ThrottledError,
    Meaning.TROUBLE: CloudError,
}


def meaning_of(code: str) -> Meaning:
    """Of what is unknown: trouble. That asks the same again, and tells the code as it is."""
    return CODES.get(code.removeprefix("Client.").removeprefix("Server."), Meaning.TROUBLE)


def error_of(operation: Operation, place: str, code: str, message: str) -> CloudError:
    """``place``: the region, or where in it."""
    meaning = meaning_of(code)
    if meaning is Meaning.PERMISSION:
        return NotPermittedError(
            f"{place}: AWS does not permit {operation.action} ({code}: {message})",
            next_step=f"Allow {', '.join(operation.actions)} to whoever these credentials belong to; "
            "`bamboo check aws --policy` prints the whole policy.",
        )
    next_step = NEXT_STEPS.get(code, _USUAL_NEXT_STEPS[meaning])
    return _ERRORS[meaning](f"{place}: {operation.action} failed with {code}: {message}", next_step=next_step)
