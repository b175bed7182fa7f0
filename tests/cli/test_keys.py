"""The SSH keys of a cluster: stored before they are used, the same ever after, and nobody else's."""

import stat
import subprocess
import threading
from pathlib import Path

import pytest

from bamboo_cli import keys
from bamboo_cli.errors import StateError


def test_a_key_is_made_once_and_is_the_owners_alone(tmp_path: Path) -> None:
    first = keys.client_key(tmp_path)

    assert keys.client_key(tmp_path) == first
    assert first.public.startswith("ssh-ed25519 ")
    file = tmp_path / "keys" / "client"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert [path.name for path in file.parent.iterdir()] == ["client"]


def test_openssh_itself_takes_the_key(tmp_path: Path) -> None:
    made = keys.client_key(tmp_path)

    public = subprocess.run(
        ["ssh-keygen", "-y", "-f", tmp_path / "keys" / "client"], check=True, capture_output=True, text=True
    ).stdout
    assert public.strip() == made.public


def test_every_request_has_a_host_key_of_its_own(tmp_path: Path) -> None:
    one, other = keys.host_key(tmp_path, "c-n1-1"), keys.host_key(tmp_path, "c-n1-2")

    assert len({one.private, other.private, keys.client_key(tmp_path).private}) == 3
    assert keys.known_host_key(tmp_path, "c-n1-1") == one
    assert keys.known_host_key(tmp_path, "c-n9-1") is None


def test_two_that_make_the_same_key_at_once_get_the_same_key(tmp_path: Path) -> None:
    together = threading.Barrier(8)
    made: list[keys.KeyPair] = []

    def make() -> None:
        together.wait(10)
        made.append(keys.host_key(tmp_path, "t"))

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(made) == 8 and len(set(made)) == 1


def test_a_damaged_key_is_named_and_not_replaced(tmp_path: Path) -> None:
    keys.client_key(tmp_path)
    (tmp_path / "keys" / "client").write_text("nonsense")

    with pytest.raises(StateError, match="client cannot be read"):
        keys.client_key(tmp_path)


def test_keys_are_forgotten_with_their_folder(tmp_path: Path) -> None:
    keys.client_key(tmp_path)
    keys.forget_keys(tmp_path)
    keys.forget_keys(tmp_path)

    assert not (tmp_path / "keys").exists()
