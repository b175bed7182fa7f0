"""SSH to the double's machines, as a careful client does it: the key that was pinned, or nothing."""

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import paramiko
import yaml

from bamboo_cli import keys
from bamboo_cli.keys import KeyPair
from tests.aws.launches import described, run_one
from tests.aws.vm.namespaces import PUBLIC_GATEWAY
from tests.waiting import wait_until

TIMEOUT_S = 5.0
IN_BOOT = (OSError, EOFError, paramiko.SSHException)
"""What a machine answers that is not up yet; BadHostKeyException is one of them, and is never put up with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    client: KeyPair
    host: KeyPair

    @property
    def user_data(self) -> str:
        """For cloud-init, which installs the host key."""
        keys = {"ed25519_private": self.host.private, "ed25519_public": self.host.public}
        return "#cloud-config\n" + yaml.safe_dump({"ssh_deletekeys": True, "ssh_keys": keys})


def make_keys(folder: Path) -> Keys:
    return Keys(client=keys.client_key(folder), host=keys.host_key(folder, "t1"))


def launch(ec2: Any, pair: Keys, **changes: Any) -> str:
    """An instance that takes these keys, and lets us in; its id."""
    if not changes.get("SecurityGroupIds"):
        changes["SecurityGroupIds"] = [open_group(ec2)]
    if not ec2.describe_key_pairs()["KeyPairs"]:
        ec2.import_key_pair(KeyName="cluster", PublicKeyMaterial=pair.client.public.encode())
    return run_one(ec2, KeyName="cluster", UserData=pair.user_data, **changes)


def open_group(ec2: Any) -> str:
    """A group that lets in SSH from here, and its own members."""
    named = ec2.describe_security_groups(Filters=[{"Name": "group-name", "Values": ["open"]}])["SecurityGroups"]
    if named:
        return str(named[0]["GroupId"])
    group_id = str(ec2.create_security_group(GroupName="open", Description="open")["GroupId"])
    us = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": f"{PUBLIC_GATEWAY}/32"}]}
    peers = {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group_id}]}
    ec2.authorize_security_group_ingress(GroupId=group_id, IpPermissions=[us, peers])
    return group_id


def connect(ec2: Any, instance_id: str, pair: Keys) -> paramiko.SSHClient:
    """Waits for it to boot. Raises BadHostKeyException."""
    address = described(ec2, instance_id)["PublicIpAddress"]
    found: list[paramiko.SSHClient] = []

    def connected() -> bool:
        try:
            found.append(connect_once(address, pair))
        except paramiko.BadHostKeyException:
            raise
        except IN_BOOT:
            return False
        return True

    wait_until(connected, f"SSH of {instance_id}")
    return found[0]


def connect_once(address: str, pair: Keys) -> paramiko.SSHClient:
    client = paramiko.SSHClient()
    client.set_missing_host_key_policy(paramiko.RejectPolicy())
    kind, key = pair.host.public.split()[:2]
    entry = paramiko.hostkeys.HostKeyEntry.from_line(f"{address} {kind} {key}")
    assert entry is not None and entry.key is not None
    client.get_host_keys().add(address, kind, entry.key)
    try:
        client.connect(
            address,
            username="ubuntu",
            pkey=paramiko.Ed25519Key.from_private_key(io.StringIO(pair.client.private)),
            allow_agent=False,
            look_for_keys=False,
            timeout=TIMEOUT_S,
            banner_timeout=TIMEOUT_S,
        )
    except BaseException:
        client.close()
        raise
    return client


def output(client: paramiko.SSHClient, command: str) -> str:
    """Of a command that ends well."""
    _, out, _ = client.exec_command(command, timeout=60.0)
    out.channel.set_combine_stderr(True)
    text = out.read().decode()
    code = out.channel.recv_exit_status()
    assert code == 0, f"{command} ended with {code}: {text}"
    return str(text)
