"""Who may do what: credentials and the caller's policy, refused as each service words it."""

from tests.aws.account import ACCOUNT_ID, Account, Credentials
from tests.aws.wire import Answer, Call, error

USER = f"arn:aws:iam::{ACCOUNT_ID}:user/bamboo"
FREE = ("GetCallerIdentity",)
"""Needs no permission."""


def refusal(call: Call, account: Account) -> Answer | None:
    """None: let it pass."""
    if account.credentials is Credentials.EXPIRED:
        code = {"ec2": "RequestExpired", "sts": "ExpiredToken"}.get(call.service, "ExpiredTokenException")
        return error(call, code, "The security token included in the request is expired")
    if account.credentials is Credentials.WRONG:
        code = {"ec2": "AuthFailure", "sts": "InvalidClientTokenId"}.get(call.service, "UnrecognizedClientException")
        return error(call, code, "AWS was not able to validate the provided access credentials")
    if call.region in account.not_enabled:  # which is how AWS says it
        code = {"ec2": "AuthFailure", "sts": "InvalidClientTokenId"}.get(call.service, "UnrecognizedClientException")
        return error(call, code, "AWS was not able to validate the provided access credentials")
    if call.action in FREE:
        return None
    for permission in needed(call):
        if not account.may(permission):
            return _denied(call, permission)
    return None


def needed(call: Call) -> tuple[str, ...]:
    """To tag on create is a permission of its own."""
    tags = call.service == "ec2" and any(key.startswith("TagSpecification") for key in call.parameters)
    return (call.permission, "ec2:CreateTags") if tags else (call.permission,)


def _denied(call: Call, permission: str) -> Answer:
    why = f"User: {USER} is not authorized to perform: {permission}"
    if call.service == "ec2":
        message = (
            f"You are not authorized to perform this operation. {why} on resource: "
            f"arn:aws:ec2:{call.region}:{ACCOUNT_ID}:*/* because no identity-based policy allows the {permission} "
            "action. Encoded authorization failure message: dGVzdA"
        )
        return error(call, "UnauthorizedOperation", message)
    code = "AccessDenied" if call.service == "sts" else "AccessDeniedException"
    return error(call, code, f"{why} because no identity-based policy allows the {permission} action")
