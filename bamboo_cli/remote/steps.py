"""A step from a fresh machine to a node, as a value: what it runs, for how long at most, and when it is done. Pure.

Every script runs in the node's folder on the machine, under ``set -e``. docs/remote.md tells what each is for.
"""

import shlex
from dataclasses import dataclass
from pathlib import Path

from bamboo_cli.remote.facts import unit_name

PYTHON = "venv/bin/python"
LARGER_DISK = "Rent a larger disk (`aws.volume_gb`), or choose an image that has torch already."
FULL = '''[ "$(df -Pk . | awk "NR == 2 {print \\$4}")" -lt 64 ] 2>/dev/null && echo "$PWD: No space left on device"'''
"""What a program says that finds the disk full; some of them, tar for one, do not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """For the machine's ``files/``: bytes, or a path here."""

    name: str
    content: bytes | Path
    fingerprint: str

    @property
    def num_bytes(self) -> int:
        return len(self.content) if isinstance(self.content, bytes) else self.content.stat().st_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    name: str
    doing: str
    """For people, while it is at hand: ``installing torch``."""
    script: str
    timeout_s: float
    fingerprint: str = ""
    """Of all that it is done from; empty: it is done on every connection."""
    files: tuple[File, ...] = ()
    """Fed to it as a tar stream."""
    text: str = ""
    """Fed to it as it is."""
    advice: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Luggage:
    """What comes along from here."""

    wheel: File
    pip: File | None
    """None: there is no pip here; the machine must have one."""
    wheelhouse: tuple[File, ...] = ()

    @property
    def files(self) -> tuple[File, ...]:
        return (self.wheel, *((self.pip,) if self.pip else ()), *self.wheelhouse)

    @property
    def num_bytes(self) -> int:
        return sum(file.num_bytes for file in self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Whose node, and so where on the machine."""

    cluster_id: str
    node_id: str

    @property
    def folder(self) -> str:
        """Below the login user's home."""
        return f".bamboo/{self.cluster_id}/{self.node_id}"

    @property
    def unit(self) -> str:
        return unit_name(self.cluster_id, self.node_id)


def script_of(step: Step, place: Place) -> str:
    """What is run on the machine: one attempt at a time, and nothing that was done before. The first line is for those
    who look at its processes."""
    name, mark = shlex.quote(f"done/{step.name}"), shlex.quote(step.fingerprint)
    is_done = f'if [ "$(cat {name} 2>/dev/null)" = {mark} ]; then exit 0; fi' if step.fingerprint else ""
    done = f"printf %s {mark} > {name}.new && mv {name}.new {name}" if step.fingerprint else ""
    return f"""# {step.name}: {step.doing}
cd "$HOME" && mkdir -p {shlex.quote(place.folder)}/done && cd {shlex.quote(place.folder)} || exit 1
exec 9> lock
flock -w {step.timeout_s:.0f} 9 || {{ echo "an earlier attempt still runs"; exit 1; }}
{is_done}
sh -ec {shlex.quote(step.script)} 9>&- || {{ code=$?; {FULL}; exit $code; }}
{done}
"""
