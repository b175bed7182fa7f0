"""One connection to a real sshd: who is let in, what is run, what ends in time."""

import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import paramiko
import pytest

from bamboo_cli.errors import ConnectionLostError, HostKeyError, UnreachableError
from bamboo_cli.keys import host_key
from bamboo_cli.providers.base import Reach
from bamboo_cli.remote import connection as module
from bamboo_cli.remote.bastion import Bastions
from bamboo_cli.remote.connection import Connection, Stdin, connect, connect_patiently
from tests.remote.machine import Machine, machine
from tests.waiting import wait_until


def patiently(vm: Machine, bastions: Bastions, *, patience_s: float = 30.0, reach: Reach | None = None) -> Connection:
    return connect_patiently(
        reach or vm.reach,
        vm.known.private,
        bastions=bastions,
        patience_s=patience_s,
        stop=threading.Event(),
    )


@pytest.fixture
def link(vm: Machine, bastions: Bastions) -> Iterator[Connection]:
    made = connect(vm.reach, vm.known.private, bastions=bastions)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def knock_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no try is cut short by the end of our patience: a busy machine takes its time for a handshake."""
    monkeypatch.setattr(module, "LAST_PAUSE_S", 0.1)
    monkeypatch.setattr(module, "SHORTEST_TRY_S", 20.0)


def write(stdin: Stdin, blob: bytes) -> None:
    stdin.write(blob)


def output_of(link: Connection, script: str, timeout_s: float = 20.0) -> tuple[int, str]:
    pieces: list[bytes] = []
    finished = link.run(script, timeout_s=timeout_s, keep=pieces.append)
    return finished.exit_code, b"".join(pieces).decode()


# --- getting in -------------------------------------------------------------------------------------------------


def test_a_machine_that_boots_late_and_learns_the_key_later_still_is_reached_in_the_end(
    raw_vm: Machine, bastions: Bastions
) -> None:
    """Refused, then let in by nobody, then open: what cloud-init looks like from outside."""

    def live() -> None:
        raw_vm.boot()
        wait_until(lambda: b"Connection closed by authenticating user" in log.read_bytes(), "a refused key")
        raw_vm.authorise()

    log = raw_vm.folder / "sshd.log"
    life = threading.Thread(target=live)
    life.start()
    link = patiently(raw_vm, bastions)
    life.join()

    assert output_of(link, "echo here") == (0, "here\n")
    link.close()


def test_another_host_key_ends_it_at_once_and_no_key_of_ours_is_shown(vm: Machine, bastions: Bastions) -> None:
    impostor = replace(vm.reach, host_key=host_key(vm.folder, "another").public)

    with pytest.raises(HostKeyError, match="not the one that it was given"):
        patiently(vm, bastions, reach=impostor, patience_s=3600.0)

    assert b"authenticating user" not in (vm.folder / "sshd.log").read_bytes()


def test_a_host_key_of_another_kind_is_not_even_looked_at(raw_vm: Machine, bastions: Bastions) -> None:
    """As an image has them before cloud-init has put ours in their place."""
    key = raw_vm.folder / "keys" / "host-vm"
    key.unlink()
    subprocess.run(["ssh-keygen", "-q", "-t", "rsa", "-N", "", "-f", key], check=True)
    raw_vm.authorise()
    raw_vm.boot()

    with pytest.raises(UnreachableError, match="no common way to speak"):
        patiently(raw_vm, bastions, patience_s=0.5)


def silent(sock: socket.socket) -> None:
    sock.recv(1)  # nothing comes: the client gives up


def half_a_banner(sock: socket.socket) -> None:
    sock.sendall(b"SSH-2.0-Ope")


def another_language(sock: socket.socket) -> None:
    sock.sendall(b"HTTP/1.1 400 Bad Request\r\n" * 200)


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [(silent, "no SSH banner"), (half_a_banner, "SSH"), (another_language, "SSH")],
)
def test_a_machine_that_never_says_a_banner_is_given_up_in_time(
    behaviour: Callable[[socket.socket], None],
    words: str,
    tmp_path: Path,
    bastions: Bastions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "BANNER_S", 0.3)
    monkeypatch.setattr(module, "AUTHENTICATE_S", 0.3)
    with (
        machine(tmp_path / "vm", booted=False) as odd,
        socket.create_server((odd.address, odd.port)) as server,
    ):

        def serve() -> None:
            try:
                while True:
                    with server.accept()[0] as sock:
                        behaviour(sock)
            except OSError:
                return

        threading.Thread(target=serve, daemon=True).start()
        with pytest.raises(UnreachableError, match=words):
            patiently(odd, bastions, patience_s=1.5)
        server.shutdown(socket.SHUT_RDWR)


def test_the_error_of_a_machine_that_refuses_says_so(tmp_path: Path, bastions: Bastions) -> None:
    with (
        machine(tmp_path / "vm", booted=False) as nobody,
        pytest.raises(UnreachableError, match="Connection refused"),
    ):
        patiently(nobody, bastions, patience_s=0.3)


def test_knocking_ends_when_it_is_not_wanted_any_more(tmp_path: Path, bastions: Bastions) -> None:
    stop = threading.Event()
    stop.set()

    with machine(tmp_path / "vm", booted=False) as nobody, pytest.raises(UnreachableError):
        connect_patiently(nobody.reach, nobody.known.private, bastions=bastions, patience_s=600, stop=stop)


# --- running ----------------------------------------------------------------------------------------------------


def test_the_exit_code_and_both_streams_in_their_order_come_back(link: Connection) -> None:
    assert output_of(link, 'echo one; echo two >&2; echo "three\'s"; exit 7') == (7, "one\ntwo\nthree's\n")


def test_megabytes_of_errors_before_the_first_word_block_nothing(link: Connection) -> None:
    code, text = output_of(link, "head -c 8000000 /dev/zero >&2; echo done")
    assert (code, len(text)) == (0, 8_000_005)


def test_a_command_that_hangs_is_killed_with_its_children_on_the_machine(link: Connection, vm: Machine) -> None:
    pids = vm.home / "pids"
    script = f"sleep 1000 & echo $! >> {pids}; sh -c 'echo $$ >> {pids}; sleep 1000'; echo never"

    for timeout_s in (0.5, 5.0, 50.0):  # until it was enough for both to begin, however busy the machine is
        assert link.run(script, timeout_s=timeout_s).timed_out
        if pids.exists() and len(begun := pids.read_text().split()) >= 2:
            break

    assert len(begun) >= 2
    for pid in map(int, begun):
        wait_until(lambda pid=pid: not _is_alive(pid), f"the end of process {pid}")  # type: ignore[misc]


def test_a_command_that_will_not_hear_is_killed_all_the_same(link: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KILL_AFTER_S", 1)

    assert link.run("trap '' TERM; while :; do sleep 1; done", timeout_s=0.3).timed_out


def test_a_daemon_that_a_command_leaves_behind_does_not_hold_it_up(link: Connection, vm: Machine) -> None:
    assert output_of(link, "setsid sleep 1000 & echo left", timeout_s=900.0)[0] == 0


def test_what_is_fed_arrives_whole(link: Connection, vm: Machine) -> None:
    blob = os.urandom(3_000_000)

    assert link.run("cd; cat > blob", timeout_s=20, feed=lambda stdin: write(stdin, blob)).exit_code == 0
    assert (vm.home / "blob").read_bytes() == blob


def test_a_command_that_takes_its_time_before_it_reads_is_fed_all_the_same(
    link: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow line, or sixteen machines at once: longer than we wait for a word of the command."""
    waited = threading.Event()
    send = paramiko.Channel.send

    def noticed(channel: paramiko.Channel, data: bytes) -> int:
        try:
            return send(channel, data)
        except TimeoutError:
            waited.set()
            link.run("cd; touch go-on", timeout_s=20)
            raise

    monkeypatch.setattr(paramiko.Channel, "send", noticed)
    blob = bytes(16 << 20)
    pieces: list[bytes] = []

    done = link.run(
        "cd; while [ ! -e go-on ]; do sleep 0.05; done; wc -c",
        timeout_s=60,
        keep=pieces.append,
        feed=lambda stdin: write(stdin, blob),
    )

    assert waited.is_set()
    assert (done.exit_code, int(b"".join(pieces))) == (0, len(blob))


def test_a_command_that_reads_nothing_of_what_it_is_fed_is_judged_by_its_exit_code(link: Connection) -> None:
    blob = bytes(5_000_000)
    assert link.run("exit 3", timeout_s=20, feed=lambda stdin: write(stdin, blob)).exit_code == 3


# --- breaking ---------------------------------------------------------------------------------------------------


def test_a_session_that_is_killed_in_the_middle_is_a_lost_connection(link: Connection, vm: Machine) -> None:
    def kill() -> None:
        wait_until(lambda: (vm.home / "begun").exists(), "the command")
        for session in vm.sessions():
            session.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(ConnectionLostError):
        link.run("cd; touch begun; sleep 1000", timeout_s=100)
    killer.join()
    wait_until(lambda: not link.is_open, "the end of the connection")


def test_a_frozen_machine_is_found_by_asking_it(link: Connection, vm: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernel still acknowledges every byte, so TCP finds nothing."""
    assert link.is_well()
    monkeypatch.setattr(module, "CHANNEL_S", 0.5)
    for process in vm.processes():
        process.suspend()

    assert not link.is_well()


def test_whoever_waits_is_told_when_the_connection_is_closed_here(link: Connection, vm: Machine) -> None:
    def close() -> None:
        wait_until(lambda: (vm.home / "begun").exists(), "the command")
        link.close()

    threading.Thread(target=close).start()
    with pytest.raises(ConnectionLostError):
        link.run("cd; touch begun; sleep 1000", timeout_s=100)


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False
