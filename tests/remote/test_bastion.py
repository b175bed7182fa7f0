"""The bastion dies, and comes back: nodes behind it are not lost, and the way to them is made anew."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from bamboo_cli import keys
from bamboo_cli.coordinator import reader, store
from bamboo_cli.errors import BastionError, StepError
from bamboo_cli.remote import bastion as module
from bamboo_cli.remote import connection, keeper
from bamboo_cli.remote.bastion import Bastions
from bamboo_cli.remote.connection import connect
from bamboo_cli.remote.settings import RemoteConfig
from tests.remote.machine import MISSING, SSHD, Machine, machine
from tests.remote.remote_cloud import RemoteCloud
from tests.remote.test_preparing import INSTALL_S, WISHES, cluster_dir, coordinate, hurry, remote_cloud, state, told, vm
from tests.waiting import until, wait_until

__all__ = ["cluster_dir", "hurry", "vm"]
pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """The user's own machine, known to them by its host key and by theirs."""
    if SSHD is None:
        pytest.skip(MISSING)
    with machine(tmp_path / "bastion", address="127.0.0.3") as made:
        home = tmp_path / "user"
        (home / ".ssh").mkdir(parents=True, mode=0o700)
        (home / ".ssh" / "known_hosts").write_text(f"[127.0.0.3]:{made.port} {made.shown.public}\n")
        (home / ".ssh" / "id_ed25519").write_text(made.known.private)
        monkeypatch.setenv("HOME", str(home))
        monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
        monkeypatch.setattr(module, "LAST_PAUSE_S", 0.2)
        monkeypatch.setattr(keeper, "BASTION_LOOK_S", 0.05)
        yield made


def spelt(gate: Machine) -> str:
    return f"{gate.reach.user}@127.0.0.3:{gate.port}"


def behind(gate: Machine, vm: Machine) -> RemoteCloud:
    cloud = remote_cloud(vm)
    cloud.reach = replace(vm.reach, bastion=spelt(gate))
    return cloud


def die(gate: Machine) -> None:
    """As a machine that is stopped: its sshd, and the connection that goes through it. Nobody knocks in between, when
    the one would still take connections."""
    sessions = gate.processes()[1:]
    assert gate.process is not None
    gate.process.kill()
    gate.process.wait()
    for session in sessions:
        with suppress(psutil.NoSuchProcess):
            session.kill()


def is_told(cluster_dir: Path, words: str) -> Callable[[], bool]:
    return lambda: any(words in text for text in told(cluster_dir))


def test_a_bastion_that_dies_while_a_node_is_prepared_and_while_it_works_costs_nothing(
    gate: Machine, vm: Machine, cluster_dir: Path
) -> None:
    """First in mid-preparation, then when the node has joined."""
    cloud, held = behind(gate, vm), vm.home / "go on"
    vm.program("cloud-init", f"touch {vm.home}/booting; while [ ! -e '{held}' ]; do sleep 0.05; done")
    agents: list[int] = []

    async def story() -> None:
        await until((vm.home / "booting").exists, "its boot")
        die(gate)
        await until(is_told(cluster_dir, "n1: waiting for the bastion"), "the loss to be told")
        assert state(cluster_dir) == "booting"
        held.touch()
        gate.boot()
        await until(lambda: state(cluster_dir) in ("joined", "standby"), "the node", deadline_s=INSTALL_S)
        agents.extend(agent.pid for agent in vm.agents())

        die(gate)
        await until(lambda: _num_told(cluster_dir, _lost(gate)) == 2, "the second loss to be told")
        gate.boot()
        await until(lambda: _num_told(cluster_dir, "is back after") == 2, "its return")
        await until(lambda: _is_heard_again(cluster_dir), "the link to be made anew")
        assert state(cluster_dir) in ("joined", "standby")

    coordinate(cluster_dir, cloud, story, uplink_patience_s=600.0)

    assert len(cloud.made) == 1 and [agent.pid for agent in vm.agents()] == agents
    assert not any("is lost" in text or "given back" in text for text in told(cluster_dir))


def _lost(gate: Machine) -> str:
    return f"the bastion {spelt(gate)} cannot be reached: "


def _num_told(cluster_dir: Path, words: str) -> int:
    return sum(words in text for text in told(cluster_dir))


def _is_heard_again(cluster_dir: Path) -> bool:
    """Since its link ended."""
    found = reader.read_status(store.state_path(cluster_dir), now=time.time()).nodes[0]
    fresh = found.last_beat_at is not None and time.time() - found.last_beat_at < 1.0
    return fresh and _num_told(cluster_dir, "the link to the agent of n1 ended") == 1


def test_a_bastion_that_stays_away_ends_the_waiting_in_time_with_its_name_and_what_to_do(
    gate: Machine, vm: Machine, cluster_dir: Path
) -> None:
    die(gate)
    cloud = behind(gate, vm)

    def gave_up() -> str:
        return reader.read_status(store.state_path(cluster_dir), now=time.time()).gave_up

    async def story() -> None:
        await until(lambda: bool(gave_up()) and not cloud.alive(), "the end of the waiting")

    coordinate(cluster_dir, cloud, story, RemoteConfig(**WISHES | {"connect_within_s": 0.5}))

    assert len(cloud.made) == 1, "what is rented now could not be reached either"
    assert f"the bastion {spelt(gate)} cannot be reached: Connection refused" in gave_up()
    assert f"`ssh -p {gate.port} {gate.reach.user}@127.0.0.3` from this machine has to work" in gave_up()


def test_everybody_is_told_at_once_that_the_bastion_is_down_and_one_alone_knocks(gate: Machine, vm: Machine) -> None:
    die(gate)
    lost: list[str] = []
    found = threading.Event()
    bastions = Bastions(lost=lambda _, detail: lost.append(detail), found=lambda _: found.set())
    for _ in range(20):
        with pytest.raises(BastionError, match="cannot be reached: Connection refused"):
            bastions.through(spelt(gate), vm.address, vm.port)
    assert lost == ["Connection refused"] and bastions.is_down(spelt(gate))

    gate.boot()
    assert found.wait(20)
    assert not bastions.is_down(spelt(gate))
    bastions.through(spelt(gate), vm.address, vm.port).close()
    bastions.close()


def test_a_connection_through_a_bastion_that_is_gone_is_closed_without_a_word(
    gate: Machine, vm: Machine, bastions: Bastions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would end the keeper's thread, and nobody would make the link to the node anew."""
    link = connect(replace(vm.reach, bastion=spelt(gate)), vm.known.private, bastions=bastions)
    channel = link.transport.sock.channel
    close = channel.close

    def gone() -> None:
        close()
        raise EOFError

    monkeypatch.setattr(channel, "close", gone)
    link.close()
    assert not link.is_open


def test_a_machine_that_refuses_is_not_the_bastions_fault(gate: Machine, bastions: Bastions) -> None:
    with pytest.raises(Exception, match="Connect failed") as raised:
        bastions.through(spelt(gate), "127.0.0.2", 9)
    assert not isinstance(raised.value, BastionError)


def test_a_bastion_that_hangs_is_found_by_asking_it(
    gate: Machine, vm: Machine, bastions: Bastions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its kernel acknowledges every byte, so TCP finds nothing; and a new connection to it may work."""
    bastions.through(spelt(gate), vm.address, vm.port).close()
    monkeypatch.setattr(module, "OPEN_S", 0.3)
    monkeypatch.setattr(module, "PROBE_S", 0.3)
    for session in gate.sessions():
        session.suspend()
    with pytest.raises(Exception, match="Timeout"):
        bastions.through(spelt(gate), vm.address, vm.port)

    monkeypatch.setattr(module, "OPEN_S", 15.0)
    bastions.through(spelt(gate), vm.address, vm.port).close()
    for session in gate.sessions():
        session.kill()


def test_a_bastion_that_allows_no_sessions_is_well_all_the_same(gate: Machine, vm: Machine, bastions: Bastions) -> None:
    """Many are for forwarding alone. To take that for silence would cut all nodes off for one that does not answer."""
    die(gate)
    gate.options = ("MaxSessions 0",)
    gate.boot()
    stream = bastions.through(spelt(gate), vm.address, vm.port)
    assert bastions.is_well(spelt(gate))
    assert stream.recv(3) == b"SSH"


@pytest.mark.parametrize("line", ["elsewhere ssh-ed25519 AAAAC\n", "\xff\n"], ids=["cut short", "not text"])
def test_a_line_of_known_hosts_that_cannot_be_read_is_told_and_ends_no_thread(
    gate: Machine, vm: Machine, bastions: Bastions, tmp_path: Path, line: str
) -> None:
    known_hosts = tmp_path / "user" / ".ssh" / "known_hosts"
    known_hosts.write_bytes(line.encode("latin-1") + known_hosts.read_bytes())
    with pytest.raises(BastionError, match=r"known_hosts has a line that cannot be read"):
        connect(replace(vm.reach, bastion=spelt(gate)), vm.known.private, bastions=bastions)


@pytest.mark.parametrize(
    ("known_hosts", "key", "words"),
    [
        ("", True, "its host key is not in known_hosts"),
        ("another", True, "it shows another host key than known_hosts has"),
        ("its own", False, "it lets none of our keys in"),
    ],
)
def test_what_bars_the_way_to_a_bastion_is_said_in_words(
    gate: Machine, vm: Machine, bastions: Bastions, tmp_path: Path, known_hosts: str, key: bool, words: str
) -> None:
    folder = tmp_path / "user" / ".ssh"
    if known_hosts != "its own":
        line = f"[127.0.0.3]:{gate.port} {keys.host_key(tmp_path, 'another').public}\n" if known_hosts else ""
        (folder / "known_hosts").write_text(line)
    if not key:
        (folder / "id_ed25519").write_text(keys.client_key(tmp_path / "stranger").private)

    with pytest.raises(BastionError, match=words):
        connect(replace(vm.reach, bastion=spelt(gate)), vm.known.private, bastions=bastions)


def test_a_bastion_that_forbids_forwarding_is_told_so(
    tmp_path: Path, gate: Machine, vm: Machine, bastions: Bastions
) -> None:
    die(gate)
    gate.options = ("AllowTcpForwarding no",)
    gate.boot()
    with pytest.raises(StepError, match="lets us not through") as raised:
        connect(replace(vm.reach, bastion=spelt(gate)), vm.known.private, bastions=bastions)
    assert "AllowTcpForwarding yes" in raised.value.next_step


def test_a_machine_behind_a_bastion_that_only_boots_is_waited_for(
    gate: Machine, raw_vm: Machine, bastions: Bastions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "LAST_PAUSE_S", 0.1)
    raw_vm.authorise()
    life = threading.Thread(target=raw_vm.boot)

    def boot_late() -> None:
        wait_until(lambda: "direct-tcpip" in (gate.folder / "sshd.log").read_text() or gate.sessions() != [], "a knock")
        life.start()

    late = threading.Thread(target=boot_late)
    late.start()
    reach = replace(raw_vm.reach, bastion=spelt(gate))
    link = connection.connect_patiently(
        reach, raw_vm.known.private, bastions=bastions, patience_s=30.0, stop=threading.Event()
    )
    late.join()
    life.join()
    assert link.run("true", timeout_s=20).exit_code == 0
    link.close()
