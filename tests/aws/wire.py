"""AWS on the wire: what a request asks for, how an error is written; query protocol (EC2, STS) and JSON (the rest)."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qsl
from xml.sax.saxutils import escape

STATUS: Mapping[str, int] = {
    "AuthFailure": 401,
    "DryRunOperation": 412,
    "InsufficientFreeAddressesInSubnet": 400,
    "InsufficientHostCapacity": 500,
    "InsufficientInstanceCapacity": 500,
    "InternalError": 500,
    "InternalFailure": 500,
    "InvalidClientTokenId": 403,
    "ExpiredToken": 403,
    "RequestLimitExceeded": 503,
    "ServiceUnavailable": 503,
    "Unavailable": 503,
    "UnauthorizedOperation": 403,
    "UnfulfillableCapacity": 500,
}
"""Where it is not 400. A status of 500 and above makes an SDK try again by itself."""

QUERY_ERROR = """<?xml version="1.0" encoding="UTF-8"?>
<Response><Errors><Error><Code>{code}</Code><Message>{message}</Message></Error></Errors><RequestID>{id}</RequestID></Response>"""
STS_ERROR = """<ErrorResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
<Error><Type>Sender</Type><Code>{code}</Code><Message>{message}</Message></Error><RequestId>{id}</RequestId></ErrorResponse>"""
REQUEST_ID = "7a62c49f-347e-4fc4-9331-6e8e00000000"

_SCOPE = re.compile(r"Credential=[^/]+/\d+/(?P<region>[^/]+)/(?P<service>[^/]+)/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """``parameters``: of the query protocol flat, as sent (``Filter.1.Name``); of JSON as the document."""

    service: str
    """As it signs: ``ec2``, ``sts``, ``ssm``, ``pricing``, ``servicequotas``, ``tagging``."""
    action: str
    region: str
    parameters: Mapping[str, Any]

    @property
    def is_json(self) -> bool:
        return self.service not in ("ec2", "sts")

    @property
    def permission(self) -> str:
        prefix = {"tagging": "tag"}.get(self.service, self.service)
        return f"{prefix}:{self.action}"

    @property
    def is_dry_run(self) -> bool:
        return str(self.parameters.get("DryRun", "")).lower() == "true"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


def read_call(authorization: str, target: str, body: bytes, *, method: str = "POST", path: str = "/") -> Call | None:
    """None: it is not signed as AWS' SDKs sign."""
    scope = _SCOPE.search(authorization)
    if scope is None:
        return None
    if scope["service"] == "fis":
        action, parameters = _read_rest(method, path, body)
    elif target:
        action, parameters = target.rpartition(".")[2], json.loads(body or b"{}")
    else:
        parameters = dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))
        action = parameters.pop("Action", "")
    return Call(service=scope["service"], action=action, region=scope["region"], parameters=parameters)


def _read_rest(method: str, path: str, body: bytes) -> tuple[str, dict[str, Any]]:
    """The Fault Injection Service has its actions in the method and the path."""
    verb = {"POST": "Create", "DELETE": "Delete", "GET": "Get"}.get(method, method)
    kind, _, name = path.strip("/").partition("/")
    action = {"CreateexperimentTemplates": "CreateExperimentTemplate", "Createexperiments": "StartExperiment"}.get(
        verb + kind, verb + kind[:1].upper() + kind[1:].removesuffix("s")
    )
    return action, json.loads(body or b"{}") | ({"id": name} if name else {})


def error(call: Call, code: str, message: str, status: int | None = None) -> Answer:
    if call.is_json:
        body = json.dumps({"__type": code, "message": message})
        kind = "application/x-amz-json-1.1"
    else:
        template = QUERY_ERROR if call.service == "ec2" else STS_ERROR
        body = template.format(code=escape(code), message=escape(message), id=REQUEST_ID)
        kind = "text/xml;charset=UTF-8"
    found = answer(status or STATUS.get(code, 400), kind, body.encode())
    return replace(found, headers=(*found.headers, ("x-amzn-errortype", code))) if call.is_json else found


def answer(status: int, kind: str, body: bytes) -> Answer:
    return Answer(status=status, headers=(("Content-Type", kind), ("Content-Length", str(len(body)))), body=body)


def error_code(answer: Answer) -> str:
    """Empty: it is not an error."""
    if answer.status < 300:
        return ""
    found = re.search(rb"<Code>([^<]+)</Code>", answer.body) or re.search(rb'"__type": *"([^"]+)"', answer.body)
    return found[1].decode().rpartition("#")[2] if found else str(answer.status)
