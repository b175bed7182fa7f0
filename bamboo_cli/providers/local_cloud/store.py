"""The local cloud's state file: written whole and put in place at once, so that kill -9 leaves the old or the new."""

import os
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from bamboo_cli.errors import StateError
from bamboo_cli.providers.local_cloud.model import STATE_VERSION, CloudState

_STATE: TypeAdapter[CloudState] = TypeAdapter(CloudState)


def load(path: Path) -> CloudState:
    """Raises StateError."""
    try:
        state = _STATE.validate_json(path.read_bytes())
    except FileNotFoundError:
        return CloudState()
    except ValidationError as error:
        raise StateError(
            f"{path} is not a state file of the local cloud ({error.error_count()} errors)",
            next_step="Move it away; the processes of its instances carry BAMBOO_CLUSTER in their environment.",
        ) from error
    if state.version != STATE_VERSION:
        raise StateError(
            f"{path} has version {state.version}; this bamboo-train knows version {STATE_VERSION}",
            next_step="Use the version of bamboo-train that wrote it.",
        )
    return state


def save(path: Path, state: CloudState) -> None:
    """Raises OSError; then the old state stands."""
    write_private(path, _STATE.dump_json(state, indent=1))


def write_private(path: Path, content: bytes) -> None:
    """Readable by its owner only: secrets are in it. Raises OSError."""
    new = path.with_name(path.name + ".new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    os.replace(new, path)
