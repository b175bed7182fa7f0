"""A client of the instance metadata service, version 2 (token first), small enough to start fast.

Each request has a total time limit, which http.client cannot give: a service that drips bytes is cut off as well.
"""

import asyncio
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

TOKEN_PATH = "/latest/api/token"
TOKEN_TTL_S = 21600
"""The most that EC2 gives. An expired token is answered with 401."""
REQUEST_S = 2.0
BODY_BYTES = 1 << 16


class MetadataError(Exception):
    """The service did not answer as it should. The message is a sentence without its subject."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    status: int
    body: str
    date: float | None
    """The service's own clock, in seconds since the epoch; None: it does not say."""


class MetadataService:
    """Proxies of the environment are ignored: the service is on the host itself."""

    def __init__(self, endpoint: str, *, request_s: float = REQUEST_S) -> None:
        self.endpoint = endpoint
        self._request_s = request_s
        self._token: str | None = None

    async def get(self, path: str) -> Answer | None:
        """What is at ``path``; None where there is nothing (404). Raises MetadataError."""
        answer = await self._get_with_token(path)
        if answer.status == 401:
            self._token = None
            answer = await self._get_with_token(path)
        if answer.status == 200:
            return answer
        if answer.status == 404:
            return None
        raise MetadataError(f"answered {answer.status} for {path}")

    async def _get_with_token(self, path: str) -> Answer:
        if self._token is None:
            ttl = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_TTL_S)}
            answer = await self._request("PUT", TOKEN_PATH, ttl)
            if answer.status != 200 or not answer.body.isascii() or not answer.body.isprintable():
                raise MetadataError(f"gave no token (status {answer.status})")
            self._token = answer.body.strip()
        return await self._request("GET", path, {"X-aws-ec2-metadata-token": self._token})

    async def _request(self, method: str, path: str, headers: dict[str, str]) -> Answer:
        url = urlsplit(self.endpoint)
        lines = [f"{method} {path} HTTP/1.1", f"Host: {url.netloc}", "Connection: close", "Content-Length: 0"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        try:
            async with asyncio.timeout(self._request_s):
                return await _exchange(url.hostname or "", url.port or 80, "\r\n".join(lines) + "\r\n\r\n")
        except TimeoutError as error:
            raise MetadataError(f"did not answer within {self._request_s:g} s") from error
        except OSError as error:
            raise MetadataError(f"cannot be reached ({error.strerror or error})") from error
        except (ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            raise MetadataError("does not speak HTTP") from error


async def _exchange(host: str, port: int, request: str) -> Answer:
    """Raises OSError, ValueError, IncompleteReadError, LimitOverrunError."""
    reader, writer = await asyncio.open_connection(host, port, limit=BODY_BYTES)
    try:
        writer.write(request.encode())
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        status_line, *header_lines = head.strip().split("\r\n")
        protocol, status = status_line.split(" ")[:2]
        if not protocol.startswith("HTTP/1."):
            raise ValueError(status_line)
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in header_lines)}
        if "content-length" in headers:
            body = await reader.readexactly(min(int(headers["content-length"]), BODY_BYTES))
        else:
            body = await reader.read(BODY_BYTES)
        return Answer(status=int(status), body=body.decode(), date=_date(headers.get("date", "")))
    finally:
        writer.close()


def _date(text: str) -> float | None:
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError):
        return None
