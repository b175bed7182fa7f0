"""Instances with machines behind them: SSH with the pinned key, their notice, and every way in which they end."""

import socket
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paramiko
import pytest

from tests.aws import ssh
from tests.aws.conftest import Cloud
from tests.aws.launches import described, run_one, state
from tests.aws.ssh import Keys, connect, launch, output
from tests.aws.vm import namespaces
from tests.aws.vm.init import SHARED
from tests.waiting import wait_until

pytestmark = pytest.mark.vms

METADATA = """
base=http://169.254.169.254/latest
token=$(curl -sf -X PUT $base/api/token -H 'X-aws-ec2-metadata-token-ttl-seconds: 60') &&
get() { curl -s -o /dev/null -w '%{http_code} ' -H "X-aws-ec2-metadata-token: $token" $base/$1;
        curl -s -H "X-aws-ec2-metadata-token: $token" $base/$1; echo; } &&
"""


@pytest.fixture
def ec2(cloud: Cloud) -> Any:
    return cloud.aws.client()


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return ssh.make_keys(tmp_path / "keys")


@pytest.fixture
def node(cloud: Cloud, ec2: Any, keys: Keys) -> Iterator["Node"]:
    instance_id = launch(ec2, keys)
    client = connect(ec2, instance_id, keys)
    yield Node(cloud, ec2, instance_id, client)
    client.close()


class Node:
    def __init__(self, cloud: Cloud, ec2: Any, instance_id: str, client: paramiko.SSHClient) -> None:
        self.cloud, self.ec2, self.instance_id, self.client = cloud, ec2, instance_id, client
        self.machine = cloud.machine(instance_id)

    def says(self, command: str) -> str:
        return output(self.client, command).strip()

    def becomes(self, wanted: str) -> dict[str, Any]:
        wait_until(lambda: state(self.ec2, self.instance_id) == wanted, f"{self.instance_id} to be {wanted}")
        return described(self.ec2, self.instance_id)

    def connection_is_dead(self) -> bool:
        transport = self.client.get_transport()
        return transport is None or not transport.is_active()


def test_a_machine_is_what_its_user_data_and_key_pair_say(node: Node) -> None:
    assert node.says("cloud-init status --wait") == "status: done"
    assert node.says("whoami; sudo whoami") == "ubuntu\nroot"
    assert node.says("hostname").startswith("ip-172-31-")
    assert described(node.ec2, node.instance_id)["PrivateIpAddress"] in node.says("ip -4 addr show eth0")


def test_a_machine_has_the_image_s_torch_and_not_bamboo(node: Node) -> None:
    found = "import importlib.util as u; print([bool(u.find_spec(n)) for n in ('torch', 'pydantic', 'bamboo_agent')])"
    assert node.says(f'cd /tmp && python3 -c "{found}"') == "[True, True, False]"


def test_another_host_key_than_the_pinned_one_is_not_talked_to(cloud: Cloud, ec2: Any, keys: Keys) -> None:
    instance_id = run_one(ec2, **_without_host_key(ec2, keys))
    with pytest.raises(paramiko.BadHostKeyException):
        connect(ec2, instance_id, keys)


def _without_host_key(ec2: Any, keys: Keys) -> dict[str, Any]:
    ec2.import_key_pair(KeyName="cluster", PublicKeyMaterial=keys.client.public.encode())
    return {"KeyName": "cluster", "SecurityGroupIds": [ssh.open_group(ec2)]}


def test_machines_have_files_and_processes_of_their_own_and_a_shared_folder(cloud: Cloud, ec2: Any, keys: Keys) -> None:
    clients = [connect(ec2, launch(ec2, keys), keys) for _ in range(2)]
    first, second = clients
    shared = f"{SHARED}/{uuid.uuid4()}"  # the folder is that of all tests
    output(first, f"echo 1 > ~/mine; mkdir {shared}; echo 1 > {shared}/ours")
    assert output(second, f"ls ~ {shared}").split() == ["/home/ubuntu:", f"{shared}:", "ours"]
    assert "mine" not in [p.name for p in Path("/home").rglob("*")]
    assert int(output(second, "ls -d /proc/[0-9]* | wc -l")) < 15
    for client in clients:
        client.close()


def test_machines_reach_each_other_by_their_private_addresses(cloud: Cloud, ec2: Any, keys: Keys) -> None:
    ids = [launch(ec2, keys) for _ in range(2)]
    first, second = (connect(ec2, instance_id, keys) for instance_id in ids)
    address = described(ec2, ids[1])["PrivateIpAddress"]
    assert "SSH-2.0" in output(first, f"bash -c 'exec 3<>/dev/tcp/{address}/22; head -1 <&3'")
    first.close()
    second.close()


def test_a_machine_lets_in_whom_its_groups_let_in(cloud: Cloud, ec2: Any, keys: Keys) -> None:
    closed = str(ec2.create_security_group(GroupName="closed", Description="closed")["GroupId"])
    peer = connect(ec2, launch(ec2, keys), keys)
    instance_id = launch(ec2, keys, SecurityGroupIds=[closed])
    found = described(ec2, instance_id)
    knock = f"timeout 1 bash -c 'head -1 </dev/tcp/{found['PrivateIpAddress']}/22' || echo no"
    assert output(peer, knock).strip() == "no"
    with pytest.raises(TimeoutError):
        socket.create_connection((found["PublicIpAddress"], 22), timeout=0.5)
    us = [{"CidrIp": f"{namespaces.PUBLIC_GATEWAY}/32"}]
    ec2.authorize_security_group_ingress(
        GroupId=closed, IpPermissions=[{"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": us}]
    )
    connect(ec2, instance_id, keys).close()
    with pytest.raises(TimeoutError):  # and no refusal
        socket.create_connection((found["PublicIpAddress"], 8080), timeout=0.5)
    assert output(peer, knock).strip() == "no"
    pairs = [{"GroupId": ssh.open_group(ec2)}]
    ec2.authorize_security_group_ingress(
        GroupId=closed, IpPermissions=[{"IpProtocol": "-1", "UserIdGroupPairs": pairs}]
    )
    assert "SSH-2.0" in output(peer, knock)
    peer.close()


def test_a_rule_that_names_a_group_means_its_members_and_no_others(cloud: Cloud, ec2: Any, keys: Keys) -> None:
    theirs = str(ec2.create_security_group(GroupName="theirs", Description="theirs")["GroupId"])
    us = {
        "IpProtocol": "tcp",
        "FromPort": 22,
        "ToPort": 22,
        "IpRanges": [{"CidrIp": f"{namespaces.PUBLIC_GATEWAY}/32"}],
    }
    ec2.authorize_security_group_ingress(GroupId=theirs, IpPermissions=[us])
    address = described(ec2, launch(ec2, keys))["PrivateIpAddress"]
    knock = f"timeout 1 bash -c 'head -1 </dev/tcp/{address}/22' || echo no"
    stranger = connect(ec2, launch(ec2, keys, SecurityGroupIds=[theirs]), keys)
    member = connect(ec2, launch(ec2, keys), keys)
    assert output(stranger, knock).strip() == "no"
    assert "SSH-2.0" in output(member, knock)
    stranger.close()
    member.close()


# --- metadata ---


def test_a_notice_is_seen_on_the_machine_and_then_it_is_gone(node: Node) -> None:
    assert node.says(METADATA + "get meta-data/spot/instance-action").startswith("404")
    assert node.says(METADATA + "get meta-data/instance-id") == f"200 {node.instance_id}"
    node.cloud.aws.interrupt(node.instance_id, notice_s=120.0)
    assert '"action": "terminate"' in node.says(METADATA + "get meta-data/spot/instance-action")
    node.cloud.aws.pass_time(121.0)
    assert node.becomes("terminated")["StateReason"]["Code"] == "Server.SpotInstanceTermination"
    wait_until(node.connection_is_dead, "the connection to break")


def test_metadata_wants_a_token_and_gives_none_through_a_proxy(node: Node) -> None:
    code = "curl -s -o /dev/null -w '%{http_code}' "
    assert node.says(code + "http://169.254.169.254/latest/meta-data/instance-id") == "401"
    put = code + "-X PUT http://169.254.169.254/latest/api/token -H 'X-aws-ec2-metadata-token-ttl-seconds: "
    assert node.says(put + "0'") == "400"
    assert node.says(put + "60' -H 'X-Forwarded-For: 1.2.3.4'") == "403"
    assert node.says(put + "60'") == "200"


def test_the_token_goes_no_further_than_the_hop_limit(node: Node) -> None:
    inside = (
        "sudo sh -c 'mkdir -p /run/netns; ip netns add box; ip link add b0 type veth peer name b1 netns box;"
        "ip addr add 10.0.0.1/24 dev b0; ip link set b0 up; ip -n box addr add 10.0.0.2/24 dev b1;"
        "ip -n box link set b1 up; ip -n box route add default via 10.0.0.1; echo 1 > /proc/sys/net/ipv4/ip_forward'"
    )
    node.says(inside)
    put = (
        "sudo ip netns exec box curl -s -m 1 -X PUT http://169.254.169.254/latest/api/token "
        "-H 'X-aws-ec2-metadata-token-ttl-seconds: 60' >/dev/null && echo got || echo lost"
    )
    assert node.says(put) == "lost"
    node.machine.boot.metadata.hop_limit = 2
    assert node.says(put) == "got"


def test_metadata_may_fail_or_hang(node: Node) -> None:
    code = "curl -s -m 1 -o /dev/null -w '%{http_code}' http://169.254.169.254/latest/meta-data/ || true"
    node.machine.boot.metadata.status = 503
    assert node.says(code) == "503"
    node.machine.boot.metadata.slow = threading.Event()
    assert node.says(code) == "000"


# --- ends ---


def test_a_terminated_instance_takes_its_machine_with_it(node: Node) -> None:
    node.ec2.terminate_instances(InstanceIds=[node.instance_id])
    wait_until(node.connection_is_dead, "the connection to break")
    assert node.becomes("terminated")["StateReason"]["Code"] == "Client.UserInitiatedShutdown"


def test_an_interruption_without_notice_kills_at_once(node: Node) -> None:
    node.cloud.aws.interrupt(node.instance_id)
    assert state(node.ec2, node.instance_id) == "terminated"
    wait_until(node.connection_is_dead, "the connection to break")


def test_a_shutdown_on_the_machine_terminates_the_instance(node: Node) -> None:
    node.client.exec_command("sudo shutdown -h now")
    assert node.becomes("terminated")["StateReason"]["Code"] == "Client.InstanceInitiatedShutdown"


def test_only_root_may_shut_down(node: Node) -> None:
    assert node.says("shutdown -h now || echo refused").endswith("refused")
    assert state(node.ec2, node.instance_id) == "running"


def test_an_on_demand_instance_that_shuts_down_is_only_stopped_unless_told_otherwise(
    cloud: Cloud, ec2: Any, keys: Keys
) -> None:
    asked = {"InstanceMarketOptions": None, "InstanceInitiatedShutdownBehavior": "stop"}
    instance_id = launch(ec2, keys, **asked)
    client = connect(ec2, instance_id, keys)
    client.exec_command("sudo shutdown -h now")
    wait_until(lambda: state(ec2, instance_id) == "stopped", "the instance to stop")
    client.close()


def test_a_machine_that_breaks_in_boot_is_terminated_by_ec2(cloud: Cloud, ec2: Any, keys: Keys) -> None:
    cloud.rack.order = ("host keys", "break")
    instance_id = launch(ec2, keys)
    wait_until(lambda: state(ec2, instance_id) == "terminated", "the instance to end")
    assert described(ec2, instance_id)["StateReason"]["Code"] == "Server.InternalError"


def test_a_cut_machine_lives_and_says_nothing(node: Node) -> None:
    node.machine.cut()
    with pytest.raises(OSError):
        ssh.connect_once(described(node.ec2, node.instance_id)["PublicIpAddress"], _any_keys(node))
    assert state(node.ec2, node.instance_id) == "running"
    namespaces.mend(node.machine.wire)
    assert node.says("echo there") == "there"


def _any_keys(node: Node) -> Keys:
    return ssh.make_keys(node.cloud.rack.folder / "some keys")


def test_a_frozen_machine_takes_connections_and_says_nothing(node: Node) -> None:
    node.machine.freeze()
    with pytest.raises(paramiko.SSHException):
        ssh.connect_once(described(node.ec2, node.instance_id)["PublicIpAddress"], _any_keys(node))
    assert state(node.ec2, node.instance_id) == "running"


def test_a_full_disk_is_full(cloud: Cloud, ec2: Any, keys: Keys) -> None:
    cloud.rack.disk_bytes = 8 << 20
    client = connect(ec2, launch(ec2, keys), keys)
    said = output(client, "head -c 20000000 /dev/zero > ~/much || true")
    assert "No space left on device" in said
    client.close()
