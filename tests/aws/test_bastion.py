"""Nodes behind a bastion, on EC2's double: prepared and kept through it, and not lost when only it is."""

import socket
import time
from pathlib import Path

import pytest

from tests.aws import ssh
from tests.aws.conftest import Cloud
from tests.aws.launches import described
from tests.aws.product import NODES, AwsBamboo
from tests.aws.ssh import Keys
from tests.aws.vm import namespaces

pytestmark = [pytest.mark.vms, pytest.mark.timeout(240)]

KNOCK_S = 0.5
CUT_S = 15.0


def test_a_node_behind_a_bastion_has_no_public_port_and_is_prepared_through_it(cloud: Cloud, bamboo: AwsBamboo) -> None:
    bamboo.hide_torch()
    bastion_id, on = _bastion(cloud, bamboo)

    bamboo.begin_up(1, on=on)
    bamboo.until(lambda: "n1 joined" in bamboo.story(), "it to be a node")

    node = described(cloud.aws.client(), bamboo.instance_of("n1"))
    assert "PublicIpAddress" not in node
    with pytest.raises(TimeoutError):
        socket.create_connection((node["PrivateIpAddress"], 22), timeout=KNOCK_S)
    _down_but_for(cloud, bamboo, bastion_id)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_bastion_that_falls_silent_while_nodes_are_prepared_and_while_they_train_costs_no_step(
    cloud: Cloud, bamboo: AwsBamboo
) -> None:
    """Its cable is out: nothing is reset, and nobody is told. For longer than a lease (10 s)."""
    bastion_id, on = _bastion(cloud, bamboo)
    held = cloud.rack.hold("bamboo")
    up = bamboo.begin_up(on=on)
    bamboo.until(lambda: held.num_met() == NODES, "all to be installing")
    _falls_silent(cloud, bamboo, bastion_id, seconds=0.0)
    held.lift()
    ended = up.end()
    assert ended.exit_code == 0, f"{ended.stderr}\n{bamboo.story()}"

    train = bamboo.begin("train", bamboo.job(nodes=NODES, stages=NODES, on=on), "--json")
    bamboo.until(lambda: bamboo.trains(steps=3), "some steps")
    _falls_silent(cloud, bamboo, bastion_id, seconds=CUT_S)
    bamboo.open_gate()
    summary = bamboo.finish(train)

    assert (summary["failovers"], summary["preemptions"], summary["steps_rerun"]) == (0, 0, 0), bamboo.story()
    assert bamboo.states("n1", "n2", "n3") == ["joined", "joined", ""], bamboo.story()
    _down_but_for(cloud, bamboo, bastion_id)


def _falls_silent(cloud: Cloud, bamboo: AwsBamboo, bastion_id: str, *, seconds: float) -> None:
    wire = cloud.machine(bastion_id).wire
    before = len([text for text in _told(bamboo) if "is back after" in text])
    namespaces.cut(wire)
    bamboo.until(lambda: len([t for t in _told(bamboo) if "cannot be reached" in t]) > before, "it to be missed")
    missed = time.monotonic()
    bamboo.until(lambda: time.monotonic() - missed >= seconds, "some time to pass")
    namespaces.mend(wire)
    bamboo.until(lambda: len([t for t in _told(bamboo) if "is back after" in t]) > before, "it to be back")


def _told(bamboo: AwsBamboo) -> list[str]:
    return [event.text for event in bamboo.events("coordinator") if event.text.startswith("the bastion")]


def _bastion(cloud: Cloud, bamboo: AwsBamboo) -> tuple[str, dict[str, object]]:
    """An instance that is the user's own, and what the job says of it."""
    ec2, keys = cloud.aws.client(), ssh.make_keys(bamboo.folder / "bastion")
    bastion_id = ssh.launch(ec2, keys)
    ssh.connect(ec2, bastion_id, keys).close()
    bastion = described(ec2, bastion_id)
    public, private = bastion["PublicIpAddress"], bastion["PrivateIpAddress"]
    bamboo.environment["HOME"] = str(_home_that_knows(public, keys, bamboo.folder / "user"))
    return bastion_id, {"bastion": f"ubuntu@{public}", "ssh_from": [f"{private}/32"]}


def _down_but_for(cloud: Cloud, bamboo: AwsBamboo, bastion_id: str) -> None:
    down = bamboo.call("down", "--yes", "--now")
    assert down.exit_code == 0, down.stderr
    assert [life.instance_id for life in cloud.aws.alive()] == [bastion_id]


def _home_that_knows(address: str, keys: Keys, home: Path) -> Path:
    """Of a user who has been there before, and may log in."""
    folder = home / ".ssh"
    folder.mkdir(parents=True)
    (folder / "known_hosts").write_text(f"{address} {keys.host.public}\n")
    (folder / "id_ed25519").write_text(keys.client.private)
    (folder / "id_ed25519").chmod(0o600)
    return home
