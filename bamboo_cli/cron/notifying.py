"""Telling somebody of a night that failed: a command, or a POST to a web address."""

import http.client
import json
import os
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import asdict, dataclass

from bamboo_cli.errors import UsageError

COMMAND_S = 60.0
ANSWER_S = 10.0
TRIES = 3
PAUSE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """``text`` comes first: chats show it as it is."""

    text: str
    id: str
    job: str
    state: str
    exit_code: int
    run_id: str | None
    log: str
    tail: tuple[str, ...]
    """The last lines of the log."""


def is_address(target: str) -> bool:
    return target.lower().startswith(("http://", "https://"))


def shown(target: str) -> str:
    """How it may be called in a log: the rest of a web address is often a secret."""
    return (_host(target) or "a web address that is none") if is_address(target) else f"`{target}`"


def check(target: str) -> None:
    """Raises UsageError: a web address to which nothing can be sent."""
    if is_address(target) and not (_host(target) and target.isascii() and target.isprintable() and " " not in target):
        raise UsageError(
            f"{shown(target)}: this is no web address that can be notified",
            next_step="Write what has no place in an address, such as spaces and umlauts, as % and two digits.",
        )


def _host(address: str) -> str:
    """Empty: it names none."""
    try:
        parts = urllib.parse.urlsplit(address)
        return (parts.hostname or "") if parts.port != 0 else ""
    except ValueError:
        return ""


def trial(entry_id: str, job: str) -> News:
    text = f"{entry_id}: this is a trial; whoever reads it will be told when a night fails"
    return News(text=text, id=entry_id, job=job, state="trial", exit_code=0, run_id=None, log="", tail=())


def notify(target: str, news: News) -> str | None:
    """Why it did not work; None: it did."""
    return _post(target, news) if is_address(target) else _run(target, news)


def _run(command: str, news: News) -> str | None:
    variables = {
        "BAMBOO_CRON_ID": news.id,
        "BAMBOO_CRON_STATE": news.state,
        "BAMBOO_CRON_EXIT_CODE": str(news.exit_code),
        "BAMBOO_CRON_SUMMARY": news.text,
        "BAMBOO_CRON_LOG": news.log,
    }
    try:
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            env=os.environ | variables,
            input="\n".join((news.text, *news.tail, "")),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMMAND_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"it had not ended after {COMMAND_S:.0f} s"
    except OSError as error:
        return str(error)
    said = (done.stderr.strip() or done.stdout.strip()).splitlines()
    return None if done.returncode == 0 else f"exit code {done.returncode}{f': {said[-1]}' if said else ''}"


def _post(address: str, news: News) -> str | None:
    why = ""
    for attempt in range(TRIES):
        if attempt:
            time.sleep(PAUSE_S * attempt)
        try:
            request = urllib.request.Request(
                address,
                data=json.dumps(asdict(news)).encode(),
                headers={"Content-Type": "application/json", "User-Agent": "bamboo"},
            )
            with urllib.request.urlopen(request, timeout=ANSWER_S):
                return None
        except urllib.error.HTTPError as error:
            why = f"HTTP {error.code} {error.reason}"
            error.close()
            if error.code < 500 and error.code != 429:
                return why
        except http.client.InvalidURL:  # it would tell the rest of the address
            return "this is no web address"
        except http.client.HTTPException as error:
            why = f"it does not answer as a web server does ({type(error).__name__})"
        except (OSError, ValueError) as error:
            why = str(error)
    return f"{why}, {TRIES} times"
