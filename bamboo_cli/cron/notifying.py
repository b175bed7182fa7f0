"""Telling somebody of a night that failed: a command, or a POST to a web address."""

import http.client
import json
import os
import queue
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import asdict, dataclass

from bamboo_cli.errors import UsageError

COMMAND_S = 60.0
LOOK_S = 0.2
ANSWER_S = 10.0
"""For all of an answer."""
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
        process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            env=os.environ | variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # so that it can be ended with all that it has started
        )
    except OSError as error:
        return str(error)
    try:
        out, err = _await_end(process, "\n".join((news.text, *news.tail, "")).encode(errors="replace"))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return f"it had not ended after {COMMAND_S:.0f} s"
    finally:
        for pipe in (process.stdin, process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()
    said = (err.decode(errors="replace").strip() or out.decode(errors="replace").strip()).splitlines()
    return None if process.returncode == 0 else f"exit code {process.returncode}{f': {said[-1]}' if said else ''}"


def _await_end(process: "subprocess.Popen[bytes]", given: bytes) -> tuple[bytes, bytes]:
    """What it says until its end; others that it has started may have its output open for longer. Raises
    TimeoutExpired."""
    deadline = time.monotonic() + COMMAND_S
    while True:
        has_ended = process.poll() is not None
        try:
            return process.communicate(given, timeout=LOOK_S)
        except subprocess.TimeoutExpired as heard:
            if has_ended:
                return heard.output or b"", heard.stderr or b""
            if time.monotonic() > deadline:
                raise
        given = b""  # communicate() wants it only once


def _post(address: str, news: News) -> str | None:
    answers: queue.Queue[_Answer] = queue.Queue()  # of all tries: one that comes late counts too
    for attempt in range(TRIES):
        if attempt:
            time.sleep(PAUSE_S * attempt)
        # a daemon: whoever answers a letter at a time must not keep the night from ending
        threading.Thread(target=lambda: answers.put(_try(address, news)), daemon=True).start()
        try:
            answer = answers.get(timeout=ANSWER_S)
        except queue.Empty:
            answer = _Answer(f"it had not answered after {ANSWER_S:.0f} s")
        if answer.is_final:
            return answer.why
    return f"{answer.why}, {TRIES} times"


@dataclass(frozen=True, slots=True)
class _Answer:
    why: str | None
    """What was wrong; None: nothing."""
    is_final: bool = False


def _try(address: str, news: News) -> _Answer:
    try:
        request = urllib.request.Request(
            address,
            data=json.dumps(asdict(news)).encode(),
            headers={"Content-Type": "application/json", "User-Agent": "bamboo"},
        )
        with urllib.request.urlopen(request, timeout=ANSWER_S):
            return _Answer(None, is_final=True)
    except urllib.error.HTTPError as error:
        error.close()
        return _Answer(f"HTTP {error.code} {error.reason}", is_final=error.code < 500 and error.code != 429)
    except http.client.InvalidURL:  # it would tell the rest of the address
        return _Answer("this is no web address", is_final=True)
    except http.client.HTTPException as error:
        return _Answer(f"it does not answer as a web server does ({type(error).__name__})")
    except (OSError, ValueError) as error:
        return _Answer(str(error))
