"""A machine becomes a node over a real sshd: with a real environment, a real pip, a real agent that joins."""

import json
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest
from bamboo_trainer.plan import NodeId

from bamboo_cli.errors import ConnectionLostError, StepError
from bamboo_cli.providers.base import Instance, InstanceState, NodeConfig
from bamboo_cli.remote import installing
from bamboo_cli.remote import prepare as module
from bamboo_cli.remote.bastion import Bastions
from bamboo_cli.remote.connection import Connection, connect
from bamboo_cli.remote.forward import Forward
from bamboo_cli.remote.installing import BOOT
from bamboo_cli.remote.prepare import StepLog, look, pack_luggage, perform, prepare
from bamboo_cli.remote.settings import RemoteConfig
from bamboo_cli.remote.starting import starting
from bamboo_cli.remote.steps import File, Luggage, Place, Step
from tests.agent.coordinator_double import SECRET, CoordinatorDouble
from tests.remote.machine import Machine
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(300)
PLACE = Place(cluster_id="c-1", node_id="n1")
CONFIG = RemoteConfig(
    pythons=("no-such-python", sys.executable), metadata_endpoint="http://127.0.0.1:9", notice_poll_s=60.0
)
"""Torch and all that we need are on the "image": the environment of these tests."""
INSTANCE = Instance(
    instance_id="i-1",
    token="t",
    node_id="n1",
    cluster_id="c-1",
    instance_type="t",
    zone="z",
    state=InstanceState.RUNNING,
    address="127.0.0.1",
    launched_at=0.0,
)


@pytest.fixture(scope="module")
def luggage() -> Luggage:
    return pack_luggage(CONFIG)


@pytest.fixture
def link(vm: Machine, bastions: Bastions) -> Iterator[Connection]:
    made = connect(vm.reach, vm.known.private, bastions=bastions)
    yield made
    made.close()


@pytest.fixture
def coordinator() -> Iterator[CoordinatorDouble]:
    made = CoordinatorDouble()
    yield made
    made.close()


def node_folder(vm: Machine) -> Path:
    return vm.home / PLACE.folder


def become_node(
    link: Connection, coordinator: CoordinatorDouble, luggage: Luggage, log: Path, config: RemoteConfig = CONFIG
) -> list[str]:
    """The steps that were said."""
    said: list[Step] = []
    prepare(
        link,
        instance=INSTANCE,
        node=NodeConfig(
            cluster_id="c-1",
            node_id="n1",
            coordinator_address="127.0.0.1",
            coordinator_port=Forward(link, ("127.0.0.1", coordinator.port)).port,
            secret=SECRET,
        ),
        luggage=luggage,
        config=config,
        say=said.append,
        log=StepLog(log),
    )
    return [step.name for step in said]


def test_a_fresh_machine_becomes_a_node_whose_agent_joins_and_is_found_again(
    vm: Machine, coordinator: CoordinatorDouble, luggage: Luggage, bastions: Bastions, tmp_path: Path
) -> None:
    first = connect(vm.reach, vm.known.private, bastions=bastions)
    assert become_node(first, coordinator, luggage, tmp_path / "n1.log") == [
        "boot",
        "files",
        "environment",
        "torch",
        "bamboo",
    ]
    wait_until(lambda: len(coordinator.joins) == 1, "the agent to join")
    join, (agent,) = coordinator.joins[0], vm.agents()
    assert (join.node_id, join.instance_id, join.zone) == (NodeId("n1"), "i-1", "z")
    config = node_folder(vm) / "config.json"
    assert config.stat().st_mode & 0o777 == 0o600
    assert "torch" in (tmp_path / "n1.log").read_text()
    assert SECRET not in (tmp_path / "n1.log").read_text()

    # The coordinator is killed, and the next one comes: nothing is installed or started again.
    first.close()
    second = connect(vm.reach, vm.known.private, bastions=bastions)
    assert become_node(second, coordinator, luggage, tmp_path / "n1.log") == []
    wait_until(lambda: len(coordinator.joins) == 2, "the agent to come back")
    assert coordinator.joins[1].boot_id == join.boot_id and vm.agents() == [agent]

    # An earlier attempt has started it meanwhile: there are never two.
    facts = look(second, PLACE, CONFIG, StepLog(tmp_path / "n1.log"))
    start = next(step for step in starting(replace(facts, agent_runs=False), PLACE, "") if step.name == "agent")
    perform(second, start, PLACE, StepLog(tmp_path / "n1.log"))
    assert vm.agents() == [agent]

    # The agent is gone (the machine was started anew, say): it is started, and nothing is installed again.
    agent.kill()
    wait_until(lambda: not vm.agents(), "the end of the agent")
    assert become_node(second, coordinator, luggage, tmp_path / "n1.log") == ["boot"]
    wait_until(lambda: len(coordinator.joins) == 3, "a new agent to join")
    assert coordinator.joins[2].boot_id != join.boot_id
    second.close()


def test_an_agent_whose_session_hangs_at_the_machines_end_comes_over_at_once(
    vm: Machine, coordinator: CoordinatorDouble, luggage: Luggage, bastions: Bastions, tmp_path: Path
) -> None:
    """As after a cable was cut: the old session is still there, and the agent waits on it."""
    first = connect(vm.reach, vm.known.private, bastions=bastions)
    become_node(first, coordinator, luggage, tmp_path / "log")
    wait_until(lambda: len(coordinator.joins) == 1, "the agent to join")
    old = vm.sessions()

    second = connect(vm.reach, vm.known.private, bastions=bastions)
    become_node(second, coordinator, luggage, tmp_path / "log")

    wait_until(lambda: len(coordinator.joins) == 2, "the agent to come over")
    wait_until(lambda: not any(p.is_running() and p.status() != "zombie" for p in old), "the end of the old session")
    assert not first.is_open and second.is_open


def test_an_installation_that_a_broken_connection_left_running_is_waited_for(
    vm: Machine, link: Connection, bastions: Bastions, tmp_path: Path
) -> None:
    """Two pips in one environment would spoil it."""
    script = "echo begun >> begun; while [ ! -e go ]; do sleep 0.05; done; echo done >> finished"
    slow = Step(name="slow", doing="being slow", script=script, timeout_s=60, fingerprint="f")
    folder, outcome = node_folder(vm), []

    def first() -> None:
        try:
            perform(link, slow, PLACE, StepLog(tmp_path / "one"))
        except ConnectionLostError:
            outcome.append("lost")

    running = threading.Thread(target=first)
    running.start()
    wait_until(lambda: (folder / "begun").exists(), "the step")
    link.close()
    running.join()
    assert outcome == ["lost"]

    again = connect(vm.reach, vm.known.private, bastions=bastions)
    second = threading.Thread(target=perform, args=(again, slow, PLACE, StepLog(tmp_path / "two")))
    second.start()
    (folder / "go").touch()
    second.join()

    assert (folder / "begun").read_text() == "begun\n" and (folder / "finished").read_text() == "done\n"
    again.close()


def test_a_step_that_hangs_is_ended_on_the_machine_and_named(link: Connection, vm: Machine, tmp_path: Path) -> None:
    hung = Step(name="torch", doing="installing torch", script="echo Downloading; sleep 1000", timeout_s=1)

    for timeout_s in (1, 10):  # the second for a machine that was too busy to begin within the first
        with pytest.raises(StepError, match=f"installing torch did not end within {timeout_s} s") as caught:
            perform(link, replace(hung, timeout_s=timeout_s), PLACE, StepLog(tmp_path / "log"))
        if "Downloading" in caught.value.message:
            break

    assert caught.value.message.endswith("s: Downloading")
    assert caught.value.step == "torch"
    wait_until(lambda: not vm.marked("sleep"), "the end of what hung")


def test_a_step_that_failed_leaves_no_mark_and_is_done_again(link: Connection, vm: Machine, tmp_path: Path) -> None:
    """Its first failing command ends it, wherever that is."""
    step = Step(name="s", doing="trying", script="echo once >> tries; [ -e ok ]\necho x", timeout_s=20, fingerprint="f")
    log = StepLog(tmp_path / "log")
    with pytest.raises(StepError, match=r"trying failed \(1\)"):
        perform(link, step, PLACE, log)
    (node_folder(vm) / "ok").touch()
    perform(link, step, PLACE, log)
    perform(link, step, PLACE, log)
    perform(link, replace(step, fingerprint="g"), PLACE, log)

    assert (node_folder(vm) / "tries").read_text() == "once\n" * 3


def test_a_disk_that_fills_is_told_in_the_systems_words(
    vm: Machine, coordinator: CoordinatorDouble, luggage: Luggage, link: Connection, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if os.getuid() != 0:
        pytest.skip("needs root, for a small disk")
    disk = vm.home / ".bamboo"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", disk], check=True)
    try:
        with pytest.raises(StepError, match=r"4 MB are free in .*/c-1/n1, and 30\d MB are needed") as caught:
            become_node(link, coordinator, luggage, tmp_path / "log")
        assert caught.value.step == "look"

        monkeypatch.setattr(installing, "_check_space", lambda *_: None)  # as if it had been enough
        more = replace(luggage, wheelhouse=(File(name="more.whl", content=bytes(5 << 20), fingerprint="more"),))
        with pytest.raises(StepError, match=r"copying files failed.*No space left on device") as caught:
            become_node(link, coordinator, more, tmp_path / "log")
        assert caught.value.step == "files"
        assert "larger disk" in caught.value.next_step
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def test_an_image_without_a_python_that_is_new_enough_is_told_so(
    vm: Machine, coordinator: CoordinatorDouble, luggage: Luggage, link: Connection, tmp_path: Path
) -> None:
    vm.program("old-python", 'echo "python=/usr/bin/python3.10|3.10.12|||/usr/lib/python3"')
    vm.program("older-python", 'echo "python=/usr/bin/python3.9|3.9.2||/usr/lib/python3"')

    with pytest.raises(StepError, match=r"no Python 3\.11 or newer \(found: /usr/bin/python3\.9 3\.9\.2\)"):
        become_node(link, coordinator, luggage, tmp_path / "log", replace(CONFIG, pythons=("older-python",)))
    with pytest.raises(StepError, match="did not say what it is like"):
        become_node(link, coordinator, luggage, tmp_path / "log", replace(CONFIG, pythons=("old-python",)))


@pytest.mark.parametrize(("code", "goes_on"), [(0, True), (2, True), (1, False)])
def test_cloud_init_is_waited_for_and_its_warnings_are_no_failure(
    code: int, goes_on: bool, vm: Machine, link: Connection, tmp_path: Path
) -> None:
    vm.program(
        "cloud-init", f'echo "cloud-init $*" >> {vm.home}/asked; [ "$2" = --wait ] && exit {code}; echo "apt: no"'
    )
    log = StepLog(tmp_path / "log")
    if goes_on:
        perform(link, BOOT, PLACE, log)
    else:
        with pytest.raises(StepError, match=r"finish booting failed.*apt: no"):
            perform(link, BOOT, PLACE, log)
    assert (vm.home / "asked").read_text().startswith("cloud-init status --wait\n")


def test_an_agent_that_cannot_start_is_told_with_the_end_of_its_log(
    vm: Machine, coordinator: CoordinatorDouble, luggage: Luggage, link: Connection, tmp_path: Path
) -> None:
    facts = module.look(link, PLACE, CONFIG, StepLog(tmp_path / "log"))
    (node_folder(vm) / "venv" / "bin").mkdir(parents=True)
    (node_folder(vm) / "venv" / "bin" / "python").symlink_to("/bin/false")
    config, agent, _ = starting(facts, PLACE, "{}")
    perform(link, config, PLACE, StepLog(tmp_path / "log"))

    with pytest.raises(StepError, match="starting the agent failed"):
        perform(link, agent, PLACE, StepLog(tmp_path / "log"))


# --- offline ----------------------------------------------------------------------------------------------------


def test_with_a_wheelhouse_nothing_is_looked_for_anywhere_else(
    vm: Machine, coordinator: CoordinatorDouble, link: Connection, tmp_path: Path
) -> None:
    """A torch that only the wheelhouse has is installed from there; one that it has not is not to be had."""
    house = tmp_path / "house"
    house.mkdir()
    (house / "lonely-1.0-py3-none-any.whl").write_bytes(_wheel("lonely"))
    config = replace(CONFIG, wheelhouse=house, torch="lonely")
    luggage = pack_luggage(config)
    facts = module.look(link, PLACE, config, StepLog(tmp_path / "log"))
    for step in installing.installing(facts, luggage, config):
        perform(link, step, PLACE, StepLog(tmp_path / "log"))
    assert list((node_folder(vm) / "venv" / "lib").glob("*/site-packages/lonely.py"))

    config = replace(config, torch="loneliest")
    facts = module.look(link, PLACE, config, StepLog(tmp_path / "log"))
    torch, *_ = installing.installing(facts, luggage, config)
    with pytest.raises(StepError, match="No matching distribution found for loneliest"):
        perform(link, torch, PLACE, StepLog(tmp_path / "log"))


def test_a_wheelhouse_without_a_wheel_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(StepError, match="there is no wheel in"):
        pack_luggage(replace(CONFIG, wheelhouse=tmp_path))


def _wheel(name: str) -> bytes:
    packed, folder = BytesIO(), f"{name}-1.0.dist-info"
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr(f"{name}.py", "")
        archive.writestr(f"{folder}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{folder}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{folder}/RECORD", f"{name}.py,,\n{folder}/METADATA,,\n{folder}/WHEEL,,\n{folder}/RECORD,,\n")
    return packed.getvalue()


# --- systemd ----------------------------------------------------------------------------------------------------


def test_systemd_itself_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("needs systemd-analyze")
    facts = _facts(root=str(tmp_path))
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "bin" / "python").symlink_to(sys.executable)
    _, agent, _ = starting(facts, PLACE, "{}")
    unit = tmp_path / PLACE.unit
    unit.write_text(agent.text)

    done = subprocess.run([analyze, "verify", unit], capture_output=True, text=True)
    complaints = [line for line in (done.stdout + done.stderr).splitlines() if PLACE.unit in line]
    assert complaints == [] and f"User={facts.user}" in agent.text and "$" not in agent.text


def test_where_systemd_runs_the_agent_is_a_unit_of_its_own(
    vm: Machine, coordinator: CoordinatorDouble, luggage: Luggage, link: Connection, tmp_path: Path
) -> None:
    """``systemctl`` and ``sudo`` are doubles here: what they are told is what counts."""
    vm.program("sudo", 'shift; "$@"')
    vm.program("install", f'cp "$3" {vm.home}/unit; echo "install $4" >> {vm.home}/asked')
    vm.program(
        "systemctl",
        f"""echo "systemctl $*" >> {vm.home}/asked
case $1 in
is-system-running) echo degraded;;
is-active) [ -e {vm.home}/started ];;
restart) touch {vm.home}/started; echo agent of node n1 >> {node_folder(vm)}/agent.log;;
esac""",
    )
    facts = module.look(link, PLACE, CONFIG, StepLog(tmp_path / "log"))
    assert facts.uses_systemd and not facts.agent_runs
    for step in starting(facts, PLACE, "{}"):
        perform(link, step, PLACE, StepLog(tmp_path / "log"))

    asked = (vm.home / "asked").read_text()
    assert f"install /etc/systemd/system/{PLACE.unit}" in asked and f"systemctl restart {PLACE.unit}" in asked
    assert f"ExecStart={node_folder(vm)}/venv/bin/python -m bamboo_agent" in (vm.home / "unit").read_text()
    assert module.look(link, PLACE, CONFIG, StepLog(tmp_path / "log")).agent_runs


def _facts(**changes: object) -> module.Facts:
    facts = module.Facts(
        root="/home/u/.bamboo/c-1/n1",
        user="root",
        is_root=False,
        may_sudo=True,
        has_systemd=True,
        agent_runs=False,
        free_bytes=1 << 40,
    )
    return replace(facts, **changes)  # type: ignore[arg-type]


def test_the_agents_file_says_how_a_machine_that_nobody_comes_back_to_is_ended() -> None:
    node = NodeConfig(cluster_id="c-1", node_id="n1", coordinator_address="127.0.0.1", coordinator_port=1, secret="s")
    as_user = json.loads(module.agent_config(INSTANCE, node, CONFIG, _facts()))
    as_root = json.loads(module.agent_config(INSTANCE, node, CONFIG, _facts(is_root=True)))

    assert as_user["orphan_after_s"] == 3600.0
    assert as_user["shutdown_command"] == ["sudo", "-n", "shutdown", "-h", "now"]
    assert as_root["shutdown_command"] == ["shutdown", "-h", "now"]
