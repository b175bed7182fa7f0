"""What a machine is like, asked once per connection: a script that it runs, and what the answers mean."""

import shlex
from dataclasses import dataclass, field

from bamboo_cli.errors import StepError

LOOK = "look"
LEAST_PYTHON = (3, 11)
UNIT = "bamboo-agent"

# One line for each Python: path|version|version of torch|where that is found.
_PROBE = """\
import sys, sysconfig
from importlib import metadata
try:
    torch = metadata.distribution("torch")
    found = f"{torch.version}|{torch.locate_file('')}"
except metadata.PackageNotFoundError:
    found = "|" + sysconfig.get_path("purelib")
print("python=%s|%d.%d.%d|%s" % (sys.executable, *sys.version_info[:3], found))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Python:
    path: str
    version: tuple[int, ...]
    torch: str
    """Empty: it has none."""
    packages: str
    """The folder with what the image has installed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    root: str
    """The node's own folder, absolute."""
    user: str
    is_root: bool
    may_sudo: bool
    has_systemd: bool
    agent_runs: bool
    free_bytes: int
    pythons: tuple[Python, ...] = ()
    done: dict[str, str] = field(default_factory=dict)
    """Fingerprints by step."""

    @property
    def sudo(self) -> str:
        return "" if self.is_root else "sudo -n "

    @property
    def uses_systemd(self) -> bool:
        return self.has_systemd and (self.is_root or self.may_sudo)


def unit_name(cluster_id: str, node_id: str) -> str:
    return f"{UNIT}-{cluster_id}-{node_id}.service"


def agent_check(unit: str) -> str:
    """Shell words that succeed where this node's agent runs: a pid alone may be somebody else's by now."""
    return (
        '{ pid=$(cat agent.pid 2>/dev/null) && tr "\\0" "\\n" < "/proc/$pid/environ" 2>/dev/null '
        '| grep -qxF "BAMBOO_NODE_CONFIG=$PWD/config.json"; } '
        f"|| systemctl is-active --quiet {shlex.quote(unit)} 2>/dev/null"
    )


def look_script(*, unit: str, pythons: tuple[str, ...]) -> str:
    """Runs in the node's folder."""
    probes = " ".join(shlex.quote(python) for python in pythons)
    return f"""
echo "root=$PWD"
echo "user=$(id -un)"
echo "uid=$(id -u)"
echo "free_kb=$(df -Pk . | awk 'NR==2 {{print $4}}')"
case "$(systemctl is-system-running 2>/dev/null)" in running|degraded|starting|maintenance) echo systemd=yes;; esac
if sudo -n true 2>/dev/null; then echo sudo=yes; fi
if {agent_check(unit)}; then echo agent=yes; fi
for python in {probes}; do
    if path=$(command -v "$python"); then "$path" -c {shlex.quote(_PROBE)} || true; fi
done
for mark in done/*; do
    if [ -f "$mark" ]; then echo "done=${{mark#done/}}|$(cat "$mark")"; fi
done
"""


def parse_facts(text: str) -> Facts:
    """Lines that are not ours (a login message) are passed over. Raises StepError."""
    single: dict[str, str] = {}
    pythons: list[Python] = []
    done: dict[str, str] = {}
    try:
        for line in text.splitlines():
            name, equals, value = line.partition("=")
            if not equals:
                continue
            if name == "python":
                path, version, torch, packages = value.split("|")
                numbers = tuple(map(int, version.split(".")))
                pythons.append(Python(path=path, version=numbers, torch=torch, packages=packages))
            elif name == "done":
                step, _, fingerprint = value.partition("|")
                done[step] = fingerprint
            else:
                single[name] = value
        return Facts(
            root=single["root"],
            user=single["user"],
            is_root=single["uid"] == "0",
            may_sudo="sudo" in single,
            has_systemd="systemd" in single,
            agent_runs="agent" in single,
            free_bytes=int(single["free_kb"]) * 1024,
            pythons=tuple(pythons),
            done=done,
        )
    except (KeyError, ValueError) as error:
        raise StepError(
            f"the machine did not say what it is like: {text[-300:]!r}",
            step=LOOK,
            next_step="Is its login shell an ordinary one, and can its user write to its home?",
        ) from error


def choose_python(facts: Facts) -> Python:
    """One with torch is worth more than a newer one. Raises StepError."""
    fit = [python for python in facts.pythons if python.version[:2] >= LEAST_PYTHON]
    if not fit:
        found = ", ".join(f"{p.path} {'.'.join(map(str, p.version))}" for p in facts.pythons) or "none"
        raise StepError(
            f"the image has no Python {'.'.join(map(str, LEAST_PYTHON))} or newer (found: {found})",
            step=LOOK,
            next_step="Choose an image that has one, such as those of Ubuntu 24.04.",
        )
    return next((python for python in fit if python.torch), fit[0])
