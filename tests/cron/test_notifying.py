"""Who is told of a failure: a command, or a web address."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from bamboo_cli.cron import notifying
from bamboo_cli.cron.notifying import News, check, notify, shown
from bamboo_cli.errors import UsageError

NEWS = News(
    text="tiny: FAILED (exit code 1): größer",
    id="tiny",
    job="/job.yaml",
    state="failed",
    exit_code=1,
    run_id="tiny-abc123-1",
    log="/log",
    tail=("one", "two"),
)


@dataclass
class Hook:
    address: str
    answers: list[int]
    """One by one; the last stays."""
    got: list[dict[str, object]] = field(default_factory=list)


@pytest.fixture
def hook() -> Iterator[Hook]:
    found = Hook("", [200])

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            found.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(found.answers.pop(0) if len(found.answers) > 1 else found.answers[0])
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        found.address = f"http://127.0.0.1:{server.server_port}/services/secret"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield found
        server.shutdown()
        thread.join()


def test_a_command_gets_the_text_and_what_it_may_sort_by(tmp_path: Path) -> None:
    told = tmp_path / "told"

    assert notify(f"cat > '{told}'; env | grep BAMBOO_CRON | sort >> '{told}'", NEWS) is None

    assert told.read_text().splitlines() == [
        NEWS.text,
        "one",
        "two",
        "BAMBOO_CRON_EXIT_CODE=1",
        "BAMBOO_CRON_ID=tiny",
        "BAMBOO_CRON_LOG=/log",
        "BAMBOO_CRON_STATE=failed",
        f"BAMBOO_CRON_SUMMARY={NEWS.text}",
    ]


def test_a_command_that_fails_or_hangs_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert notify("echo no route >&2; exit 3", NEWS) == "exit code 3: no route"
    monkeypatch.setattr(notifying, "COMMAND_S", 0.05)
    assert notify("exec tail -f /dev/null", NEWS) == "it had not ended after 0 s"


def test_a_command_that_leaves_somebody_behind_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which holds its output open; nor is anybody left when it took too long."""
    begun = time.monotonic()

    assert notify("sleep 30 & exit 0", NEWS) is None
    assert notify("sleep 30 & echo no route >&2; exit 3", NEWS) == "exit code 3: no route"
    monkeypatch.setattr(notifying, "COMMAND_S", 0.05)
    assert notify("sleep 30; true", NEWS) == "it had not ended after 0 s"

    assert time.monotonic() - begun < 15


def test_a_web_address_gets_json_that_chats_can_show(hook: Hook) -> None:
    assert notify(hook.address, NEWS) is None

    (got,) = hook.got
    assert got["text"] == NEWS.text and got["tail"] == ["one", "two"] and got["exit_code"] == 1


def test_one_that_is_busy_is_asked_again(hook: Hook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifying, "PAUSE_S", 0.0)
    hook.answers = [503, 429, 200]

    assert notify(hook.address, NEWS) is None
    assert len(hook.got) == 3


def test_one_that_refuses_is_not(hook: Hook) -> None:
    hook.answers = [404]

    assert notify(hook.address, NEWS) == "HTTP 404 Not Found"
    assert len(hook.got) == 1


def test_nobody_there_is_told_without_the_secret_of_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifying, "PAUSE_S", 0.0)

    why = notify("http://127.0.0.1:1/secret", NEWS)

    assert why is not None and "refused" in why and "3 times" in why and "secret" not in why
    assert shown("https://hooks.example.org/secret") == "hooks.example.org"
    assert notify("http://[broken", NEWS) is not None


def test_what_is_no_web_server_is_told_like_any_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifying, "PAUSE_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def greet() -> None:
            for _ in range(notifying.TRIES):
                connection, _ = listening.accept()
                with connection:
                    connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
                    while connection.recv(4096):  # until the other side has read that, and gone
                        pass

        thread = threading.Thread(target=greet)
        thread.start()
        why = notify(f"http://127.0.0.1:{listening.getsockname()[1]}/secret", NEWS)
        thread.join()

    assert why is not None and "does not answer as a web server" in why and "3 times" in why and "secret" not in why


def test_one_that_answers_a_letter_at_a_time_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifying, "PAUSE_S", 0.0)
    monkeypatch.setattr(notifying, "ANSWER_S", 0.2)
    gone = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def drip(connection: socket.socket) -> None:
            with connection, contextlib.suppress(OSError):
                connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
                while not gone.wait(0.02):
                    connection.sendall(b"x")

        def serve() -> None:
            with ThreadPoolExecutor() as pool:
                for _ in range(notifying.TRIES):
                    pool.submit(drip, listening.accept()[0])

        thread = threading.Thread(target=serve)
        thread.start()
        why = notify(f"http://127.0.0.1:{listening.getsockname()[1]}/secret", NEWS)
        gone.set()
        thread.join()

    assert why == "it had not answered after 0 s, 3 times"


@pytest.mark.parametrize(
    "address", ["http://", "https://?secret", "http://[secret", "http://a.example/secret x", "http://a.example/ü"]
)
def test_an_address_to_which_nothing_can_be_sent_is_refused_when_added_and_told_at_night(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setattr(notifying, "PAUSE_S", 0.0)

    with pytest.raises(UsageError, match="no web address"):
        check(address)

    why = notify(address, NEWS)
    assert why is not None and "secret" not in why + shown(address)


def test_addresses_and_commands_that_may_work_are_taken() -> None:
    for target in ("https://hooks.example.org/T0/B%20?a=b", "HTTP://127.0.0.1:8080", "mail -s 'größer' me@example.org"):
        check(target)
