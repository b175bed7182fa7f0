"""SSH keys of a cluster: one for us, and one for each instance to show who it is. Ed25519, for the owner's eyes only.

A key is stored before it is given to anybody, so a command that is repeated after a kill uses the same one.
"""

import os
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path

from bamboo_cli.errors import StateError

FOLDER = "keys"
"""Inside the cluster's."""
CLIENT = "client"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPair:
    private: str
    """OpenSSH PEM text."""
    public: str
    """OpenSSH line: ``ssh-ed25519 AAAA...``."""


def client_key(folder: Path) -> KeyPair:
    """What we log in with, made on first use. ``folder``: the cluster's. Raises StateError."""
    return _stored(folder, CLIENT) or _make(folder, CLIENT)


def host_key(folder: Path, token: str) -> KeyPair:
    """What the instance of that request shows, made on first use. Raises StateError."""
    return known_host_key(folder, token) or _make(folder, f"host-{token}")


def known_host_key(folder: Path, token: str) -> KeyPair | None:
    """None: this folder never made one. Raises StateError."""
    return _stored(folder, f"host-{token}")


def forget_keys(folder: Path) -> None:
    """Once nothing is left that they open."""
    shutil.rmtree(folder / FOLDER, ignore_errors=True)


def _stored(folder: Path, name: str) -> KeyPair | None:
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    path = folder / FOLDER / name
    try:
        private = path.read_text(encoding="ascii")
        return KeyPair(private=private, public=_public_line(load_ssh_private_key(private.encode(), password=None)))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise StateError(
            f"the key {path} cannot be read: {error}", next_step="What it opened has to be rented anew: `bamboo down`."
        ) from error


def _make(folder: Path, name: str) -> KeyPair:
    """Of two that are made at once, the first to be stored is everybody's."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    path = folder / FOLDER / name
    unfinished = path.with_name(f"{name}.new-{secrets.token_hex(3)}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(unfinished, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600), "wb") as file:
            file.write(private)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(unfinished, path)
        except FileExistsError:
            pass
        finally:
            unfinished.unlink()
    except OSError as error:
        raise StateError(
            f"the key {path} cannot be written: {error}", next_step="Free some space, or make the folder yours."
        ) from error
    stored = _stored(folder, name)
    assert stored is not None
    return stored


def _public_line(private: object) -> str:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    if not isinstance(private, Ed25519PrivateKey):
        raise ValueError("it is no Ed25519 key")
    return private.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode("ascii")
