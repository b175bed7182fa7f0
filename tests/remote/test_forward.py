"""The way from a machine's loopback to a port here, over a real sshd, and how a connection that is cut is noticed."""

import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from bamboo_cli.errors import StepError
from bamboo_cli.remote import forward as module
from bamboo_cli.remote.bastion import Bastions, parse
from bamboo_cli.remote.connection import Connection, connect
from bamboo_cli.remote.forward import Forward
from tests.remote.machine import MISSING, SSHD, Machine, machine
from tests.waiting import wait_until


class Echo:
    """Stands where the coordinator listens: gives back what it gets."""

    def __init__(self) -> None:
        self.server = socket.create_server(("127.0.0.1", 0))
        self.target: tuple[str, int] = self.server.getsockname()
        self.open = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                sock, _ = self.server.accept()
            except OSError:
                return
            threading.Thread(target=self._give_back, args=(sock,), daemon=True).start()

    def _give_back(self, sock: socket.socket) -> None:
        self.open += 1
        with sock, suppress(ConnectionError):
            while piece := sock.recv(1 << 16):
                sock.sendall(piece)
        self.open -= 1

    def close(self) -> None:
        with suppress(OSError):  # closed before
            self.server.shutdown(socket.SHUT_RDWR)
        self.server.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    made = Echo()
    yield made
    made.close()


@pytest.fixture
def link(vm: Machine, bastions: Bastions) -> Iterator[Connection]:
    made = connect(vm.reach, vm.known.private, bastions=bastions)
    yield made
    made.close()


def dial(port: int) -> socket.socket:
    """As the agent does; sshd listens on the loopback of "its" machine, which here is ours."""
    return socket.create_connection(("127.0.0.1", port), timeout=20)


def exchange(sock: socket.socket, blob: bytes) -> bytes:
    threading.Thread(target=sock.sendall, args=(blob,), daemon=True).start()
    got = bytearray()
    while len(got) < len(blob):
        piece = sock.recv(1 << 16)
        assert piece, "it ended in the middle"
        got += piece
    return bytes(got)


def test_megabytes_go_both_ways_at_once_while_commands_run(link: Connection, echo: Echo) -> None:
    blob = os.urandom(4_000_000)
    with dial(Forward(link, echo.target).port) as sock:
        moving = threading.Thread(target=lambda: results.append(exchange(sock, blob)))
        results: list[bytes] = []
        moving.start()
        assert link.run("true", timeout_s=20).exit_code == 0
        moving.join()
    assert results == [blob]


def test_a_reader_that_sleeps_holds_nobody_else_up(link: Connection, echo: Echo) -> None:
    """One thread reads the whole connection: it must never wait for one stream."""
    port = Forward(link, echo.target).port
    with dial(port) as stuck, dial(port) as other:
        stuck.settimeout(1.0)
        with pytest.raises(TimeoutError):
            while True:
                stuck.sendall(bytes(1 << 20))  # nobody reads what comes back
        assert exchange(other, b"alive") == b"alive"
        assert link.is_well()


def test_either_end_ends_the_stream(link: Connection, echo: Echo) -> None:
    port = Forward(link, echo.target).port
    with dial(port) as sock:
        assert exchange(sock, b"x") == b"x"
    wait_until(lambda: echo.open == 0, "the end of the stream here")


def test_a_stream_to_a_coordinator_that_is_away_ends_at_once(link: Connection, echo: Echo) -> None:
    port = Forward(link, echo.target).port
    echo.close()
    with dial(port) as sock:
        assert sock.recv(1) == b""


def test_more_streams_than_one_machine_needs_are_refused(
    link: Connection, echo: Echo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_STREAMS", 2)
    port = Forward(link, echo.target).port
    with dial(port) as one, dial(port) as two:
        assert exchange(one, b"1") == b"1" and exchange(two, b"2") == b"2"
        with dial(port) as three:
            assert three.recv(1) == b""
    with dial(port) as again:
        wait_until(lambda: echo.open <= 1, "room")
    assert again.fileno() == -1


def test_a_machine_that_allows_no_forwarding_is_told_so(raw_vm: Machine, bastions: Bastions, echo: Echo) -> None:
    raw_vm.options = ("AllowTcpForwarding no",)
    raw_vm.authorise()
    raw_vm.boot()
    link = connect(raw_vm.reach, raw_vm.known.private, bastions=bastions)

    with pytest.raises(StepError, match="allows no forwarding"):
        Forward(link, echo.target)
    link.close()


# --- through a bastion ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("ops@10.0.0.1", ("ops", "10.0.0.1", 22)),
        ("ops@host:2222", ("ops", "host", 2222)),
        ("host", (None, "host", 22)),
        ("ops@[::1]:2222", ("ops", "::1", 2222)),
        ("[::1]", (None, "::1", 22)),
    ],
)
def test_a_bastion_is_written_as_for_ssh(text: str, meaning: tuple[str | None, str, int]) -> None:
    assert parse(text) == meaning


@pytest.mark.parametrize("text", ["", "@host", "ops@", "ops@host:ssh"])
def test_what_is_no_bastion_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse(text)


@pytest.fixture
def through_bastion(vm: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Machine, Machine]]:
    """The user's machine, known to them by its host key and by theirs, and an instance behind it."""
    with machine(tmp_path / "bastion", address="127.0.0.3") as bastion:
        home = tmp_path / "user"
        (home / ".ssh").mkdir(parents=True, mode=0o700)
        (home / ".ssh" / "known_hosts").write_text(f"[127.0.0.3]:{bastion.port} {bastion.shown.public}\n")
        (home / ".ssh" / "id_ed25519").write_text(bastion.known.private)
        monkeypatch.setenv("HOME", str(home))
        monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
        yield bastion, vm


def test_many_nodes_go_through_one_connection_to_the_bastion(
    through_bastion: tuple[Machine, Machine], bastions: Bastions, echo: Echo
) -> None:
    bastion, vm = through_bastion
    reach = replace(vm.reach, bastion=f"{bastion.reach.user}@127.0.0.3:{bastion.port}")
    links: list[Connection] = []
    threads = [
        threading.Thread(target=lambda: links.append(connect(reach, vm.known.private, bastions=bastions)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(links) == 8 and (bastion.folder / "sshd.log").read_text().count("Accepted publickey") == 1
    with dial(Forward(links[0], echo.target).port) as sock:
        assert exchange(sock, b"through") == b"through"

    for session in bastion.sessions():
        session.kill()
    wait_until(lambda: not any(link.is_open for link in links), "the end of all connections")
    again = connect(reach, vm.known.private, bastions=bastions)
    assert again.run("true", timeout_s=20).exit_code == 0
    again.close()


# --- a cut without a word ---------------------------------------------------------------------------------------


@pytest.fixture
def apart(tmp_path: Path) -> Iterator[tuple[Machine, str]]:
    """A machine in a network of its own, and our end of the cable."""
    if SSHD is None:
        pytest.skip(MISSING)
    if os.getuid() != 0:
        pytest.skip("needs root, for a network namespace")
    name, cable = f"bamboo-{os.getpid()}", f"bb{os.getpid()}"
    ours, theirs = f"10.213.{os.getpid() % 250}.1", f"10.213.{os.getpid() % 250}.2"
    ip(f"netns add {name}")
    try:
        ip(f"link add {cable} type veth peer name eth0 netns {name}")
        ip(f"addr add {ours}/30 dev {cable}")
        ip(f"link set {cable} up")
        for text in ("link set lo up", f"addr add {theirs}/30 dev eth0", "link set eth0 up"):
            ip(f"-n {name} {text}")
        with machine(
            tmp_path / "vm", booted=False, address=theirs, port=22, wrapped=("ip", "netns", "exec", name)
        ) as made:
            made.authorise()
            made.boot()
            yield made, cable
    finally:
        ip(f"netns del {name}")


def ip(text: str) -> None:
    done = subprocess.run(["ip", *text.split()], capture_output=True, text=True)
    if done.returncode != 0 and "netns add" in text:
        pytest.skip(f"no network namespaces here: {done.stderr.strip()}")
    done.check_returncode()


def test_a_cable_that_is_pulled_is_noticed_within_seconds_and_the_next_connection_works(
    apart: tuple[Machine, str], bastions: Bastions, echo: Echo
) -> None:
    vm, cable = apart
    link = connect(vm.reach, vm.known.private, bastions=bastions)
    Forward(link, echo.target)

    ip(f"link set {cable} down")
    began = time.monotonic()
    wait_until(lambda: not link.is_open, "the end of the connection")
    assert time.monotonic() - began < 25
    ip(f"link set {cable} up")

    again = connect(vm.reach, vm.known.private, bastions=bastions)
    assert Forward(again, echo.target).port > 0
    again.close()
