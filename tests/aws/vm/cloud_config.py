"""The few keys of cloud-init's user data that the double's machines obey. Any other key is an error, not ignored.

https://cloudinit.readthedocs.io/en/latest/reference/modules.html
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

HEAD = "#cloud-config"
DEFAULT_USER = "ubuntu"
KNOWN = {"ssh_keys", "ssh_deletekeys", "ssh_authorized_keys", "users", "write_files", "runcmd", "bootcmd"}
KNOWN |= {"package_update", "package_upgrade", "disable_root", "ssh_pwauth"}
"""The last ones say no to something that the machines do not do anyway."""
KNOWN_OF_USER = {"name", "ssh_authorized_keys", "sudo", "shell", "lock_passwd", "groups"}


class NotUnderstood(Exception):
    """The user data asks for something that the double cannot do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    path: str
    content: str
    mode: int = 0o644


@dataclass(frozen=True, slots=True, kw_only=True)
class Seed:
    """What cloud-init would make of the machine."""

    host_keys: tuple[File, ...] = ()
    deletes_host_keys: bool = True
    """The image's own are replaced by new ones, unless keys are given."""
    authorized_keys: Mapping[str, tuple[str, ...]]
    """By user. All of them may sudo."""
    files: tuple[File, ...] = ()
    commands: tuple[str, ...] = ()


def seed_of(user_data: str, public_key: str) -> Seed:
    """``public_key``: of the key pair, for the default user. Raises NotUnderstood."""
    keys = (public_key,) if public_key else ()
    if not user_data.strip():
        return Seed(authorized_keys={DEFAULT_USER: keys})
    if user_data.startswith("#!"):
        return Seed(authorized_keys={DEFAULT_USER: keys}, commands=(user_data,))
    if not user_data.startswith(HEAD):
        raise NotUnderstood(f"user data that begins with {user_data[:40]!r}")
    config: dict[str, Any] = yaml.safe_load(user_data) or {}
    if strange := config.keys() - KNOWN:
        raise NotUnderstood(f"user data with {', '.join(sorted(strange))}")
    users = {DEFAULT_USER: keys + tuple(config.get("ssh_authorized_keys", ()))}
    for user in config.get("users", ()):
        if user == "default":
            continue
        if strange := user.keys() - KNOWN_OF_USER:
            raise NotUnderstood(f"a user with {', '.join(sorted(strange))}")
        users[user["name"]] = users.get(user["name"], ()) + tuple(user.get("ssh_authorized_keys", ()))
    return Seed(
        host_keys=tuple(_host_keys(config.get("ssh_keys", {}))),
        deletes_host_keys=bool(config.get("ssh_deletekeys", True)),
        authorized_keys=users,
        files=tuple(
            File(path=f["path"], content=f.get("content", ""), mode=int(str(f.get("permissions", "0644")), 8))
            for f in config.get("write_files", ())
        ),
        commands=tuple(_command(c) for c in (*config.get("bootcmd", ()), *config.get("runcmd", ()))),
    )


def _host_keys(given: Mapping[str, str]) -> list[File]:
    files = []
    for name, content in given.items():
        kind, _, half = name.partition("_")
        if half not in ("private", "public"):
            raise NotUnderstood(f"ssh_keys with {name}")
        path = f"/etc/ssh/ssh_host_{kind}_key" + (".pub" if half == "public" else "")
        files.append(File(path=path, content=content.rstrip("\n") + "\n", mode=0o600 if half == "private" else 0o644))
    return files


def _command(command: str | list[str]) -> str:
    import shlex

    return command if isinstance(command, str) else shlex.join(command)
