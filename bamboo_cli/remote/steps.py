"""The steps from a fresh machine to a node, as values: what each runs, for how long at most, and when it is done. Pure.

Every script runs in the node's folder on the machine, under ``set -e``. docs/remote.md tells what each is for.
"""

import hashlib
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from string import Template

from bamboo_cli.errors import StepError
from bamboo_cli.remote.facts import LOOK, Facts, Python, choose_python, unit_name
from bamboo_cli.remote.settings import RemoteConfig

PYTHON = "venv/bin/python"
MEGABYTE = 1 << 20
BASE_BYTES = 300 * MEGABYTE
"""Of a node that finds torch on its image: our own wheel and what that needs."""
TORCH_BYTES = 8000 * MEGABYTE
"""Of torch and the CUDA libraries that its wheel needs, loaded and unpacked."""
CPU_TORCH_BYTES = 1500 * MEGABYTE
UNPACKED = 3
"""So many times the bytes of a wheel are needed to install it."""
AGENT_WORDS = "agent of node"
"""What it says first."""


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


BOOT = Step(
    name="boot",
    doing="waiting for its image to finish booting",
    script="""
command -v cloud-init > /dev/null || exit 0
code=0
cloud-init status --wait || code=$?
# 2: it ended with warnings
if [ $code != 0 ] && [ $code != 2 ]; then cloud-init status --long || true; exit $code; fi
""",
    timeout_s=600,
    advice="`cloud-init status --long` on the machine says more; another image may be better.",
)


def installing(facts: Facts, place: Place, luggage: Luggage, config: RemoteConfig) -> tuple[Step, ...]:
    """Everything up to the agent's first start; what was done before is left out. Raises StepError."""
    python = choose_python(facts)
    steps = tuple(_chain(python, luggage, config))
    missing = tuple(step for step in steps if facts.done.get(step.name) != step.fingerprint)
    _check_space(facts, python, missing, luggage, config)
    return missing


def starting(facts: Facts, place: Place, config_text: str) -> tuple[Step, ...]:
    """On every connection: the agent is told where to go, started unless it runs, and comes over to this one."""
    steps = [_config(config_text)]
    if not facts.agent_runs:
        steps.append(_systemd_agent(facts, place) if facts.uses_systemd else _plain_agent())
    return (*steps, _link())


def _chain(python: Python, luggage: Luggage, config: RemoteConfig) -> Iterable[Step]:
    """Each step's fingerprint holds those before it: what is built on something that is made anew, is made anew."""
    seed = ""
    for step in (
        _files(luggage),
        _environment(python, luggage.pip),
        _torch(luggage, config),
        _bamboo(luggage, config),
    ):
        contents = (seed, step.script, *(f"{file.name} {file.fingerprint}" for file in step.files))
        seed = hashlib.sha256("\n".join(contents).encode()).hexdigest()[:16]
        yield Step(
            name=step.name,
            doing=step.doing,
            script=step.script,
            timeout_s=step.timeout_s,
            fingerprint=seed,
            files=step.files,
            advice=step.advice,
        )


def _check_space(
    facts: Facts, python: Python, missing: tuple[Step, ...], luggage: Luggage, config: RemoteConfig
) -> None:
    names = {step.name for step in missing}
    if not names:
        return
    needed = BASE_BYTES + (luggage.num_bytes if "files" in names else 0)
    if "torch" in names and luggage.wheelhouse:
        needed += UNPACKED * luggage.num_bytes
    elif "torch" in names and not python.torch:
        needed += CPU_TORCH_BYTES if config.index_url.rstrip("/").endswith("cpu") else TORCH_BYTES
    if facts.free_bytes < needed:
        raise StepError(
            f"{facts.free_bytes // MEGABYTE} MB are free in {facts.root}, and {needed // MEGABYTE} MB are needed",
            step=LOOK,
            next_step="Rent a larger disk, or choose an image that has torch already.",
        )


# --- from the image to what can train ---------------------------------------------------------------------------


def _files(luggage: Luggage) -> Step:
    return Step(
        name="files",
        doing="copying files",
        script="rm -rf files.new && mkdir files.new && tar -xf - -C files.new && rm -rf files && mv files.new files",
        timeout_s=1200,
        files=luggage.files,
    )


SITE = f"""site=$({PYTHON} -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"""


def _environment(python: Python, pip: File | None) -> Step:
    """It sees what the image has, also where that is in an environment of its own. Images of Debian and Ubuntu have
    neither pip nor what makes one, so ours is unpacked into it wherever we have one."""
    path, without = shlex.quote(python.path), "--without-pip " if pip else ""
    return Step(
        name="environment",
        doing="making a Python environment",
        script=f"""
rm -rf venv
{path} -m venv {without}venv
{SITE}
printf '%s\\n' {shlex.quote(python.packages)} > "$site/bamboo-image.pth"
{_unpack(pip) if pip else ""}
""",
        timeout_s=120,
        advice="Does the image's Python have its venv module?",
    )


def _torch(luggage: Luggage, config: RemoteConfig) -> Step:
    """pip takes seconds to find that there is nothing to do, so it is asked only if there is."""
    index = f" --index-url {shlex.quote(config.index_url)}" if config.index_url and not luggage.wheelhouse else ""
    return Step(
        name="torch",
        doing="installing torch",
        script=f"""
if {PYTHON} -c {shlex.quote(_IS_SATISFIED)} {shlex.quote(config.torch)}; then exit 0; fi
{_pip(luggage)} {shlex.quote(config.torch)}{index}
""",
        timeout_s=1500,
        advice="Is there such a torch at the index for the image's Python, and can the machine reach it?",
    )


_IS_SATISFIED = """\
import sys
from importlib import metadata
from pip._vendor.packaging.requirements import Requirement
wish = Requirement(sys.argv[1])
try:
    found = metadata.version(wish.name)
except metadata.PackageNotFoundError:
    sys.exit(1)
print(wish.name, found, "is here")
sys.exit(not wish.specifier.contains(found, prereleases=True))
"""


def _bamboo(luggage: Luggage, config: RemoteConfig) -> Step:
    """Our own version of our own code, even if the image has a Bamboo; then what it needs, tried out once."""
    more = "".join(f" {shlex.quote(package)}" for package in config.packages)
    return Step(
        name="bamboo",
        doing="installing bamboo",
        script=f"""
{SITE}
rm -rf "$site"/bamboo_*
{_unpack(luggage.wheel)}
{_pip(luggage)} 'bamboo-train[train]'{more}
{PYTHON} -c 'import bamboo_agent.agent, bamboo_trainer.loop, torch
print("torch", torch.__version__, "with", torch.cuda.device_count(), "GPUs")'
""",
        timeout_s=900,
        advice="Can the machine reach the package index? If it may not, give a wheelhouse.",
    )


def _unpack(wheel: File) -> str:
    """All that there is to installing a wheel of pure Python without commands."""
    return f'{PYTHON} -m zipfile -e {shlex.quote(f"files/{wheel.name}")} "$site"'


def _pip(luggage: Luggage) -> str:
    """What it loads and unpacks goes to the node's own disk: /tmp may be small. It does not look whether what else the
    image has fits together: of 120 packages that took 4 of 5 s."""
    nowhere_else = " --no-index --find-links files" if luggage.wheelhouse else ""
    return (
        'mkdir -p tmp && TMPDIR="$PWD/tmp" PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore '
        f"{PYTHON} -m pip install --no-input --no-cache-dir --no-warn-conflicts --progress-bar off{nowhere_else}"
    )


# --- the agent --------------------------------------------------------------------------------------------------


def _config(text: str) -> Step:
    """It holds the cluster's secret."""
    return Step(
        name="config",
        doing="writing the agent's file",
        script="umask 077 && cat > config.json.new && mv config.json.new config.json",
        timeout_s=60,
        text=text,
    )


def _plain_agent() -> Step:
    return Step(
        name="agent",
        doing="starting the agent",
        script=f"""
begin=$(wc -c 2>/dev/null < agent.log || echo 0)
BAMBOO_NODE_CONFIG="$PWD/config.json" setsid {PYTHON} -m bamboo_agent >> agent.log 2>&1 < /dev/null &
echo $! > agent.pid
{_first_word('kill -0 "$(cat agent.pid)" 2>/dev/null')}
""",
        timeout_s=90,
        advice="Its log is agent.log in the node's folder.",
    )


def _systemd_agent(facts: Facts, place: Place) -> Step:
    from bamboo_templates import AGENT_UNIT

    unit, sudo = shlex.quote(place.unit), facts.sudo
    text = Template(AGENT_UNIT.read_text(encoding="utf-8")).substitute(
        node_id=place.node_id, cluster_id=place.cluster_id, user=facts.user, root=facts.root
    )
    return Step(
        name="agent",
        doing="starting the agent",
        script=f"""
begin=$(wc -c 2>/dev/null < agent.log || echo 0)
cat > agent.service
{sudo}install -m 0644 agent.service /etc/systemd/system/{unit}
{sudo}systemctl daemon-reload
{sudo}systemctl enable {unit}
{sudo}systemctl restart {unit}
{_first_word(f"systemctl is-active --quiet {unit}")}
""",
        timeout_s=90,
        text=text,
        advice=f"`systemctl status {place.unit}` on the machine says more; its log is agent.log in the node's folder.",
    )


def _first_word(alive: str) -> str:
    """It has read its file, and imported all that it needs."""
    return f"""
for _ in $(seq 120); do
    if tail -c +$((begin + 1)) agent.log 2>/dev/null | grep -q {shlex.quote(AGENT_WORDS)}; then exit 0; fi
    if ! {alive}; then break; fi
    sleep 0.5
done
echo "the agent did not start:"; tail -n 20 agent.log
exit 1
"""


def _link() -> Step:
    """An SSH session whose cable was cut lives on at the machine's end, and so does the agent's link in it."""
    return Step(
        name="link",
        doing="linking the agent",
        script="""
started() { awk '{print $22}' "/proc/$1/stat" 2>/dev/null; }
here=$$
while [ "$here" -gt 1 ]; do
    case "$(cat "/proc/$here/comm")" in sshd*) break;; esac
    here=$(awk '/^PPid:/ {print $2}' "/proc/$here/status")
done
before=$(cat session 2>/dev/null || true)
printf '%s %s\\n' "$here" "$(started "$here")" > session
set -- $before
if [ $# = 2 ] && [ "$1" != "$here" ] && [ "$(started "$1")" = "$2" ]; then kill "$1" || true; fi
""",
        timeout_s=60,
    )


def script_of(step: Step, place: Place) -> str:
    """What is run on the machine: one attempt at a time, and nothing that was done before."""
    name, mark = shlex.quote(f"done/{step.name}"), shlex.quote(step.fingerprint)
    is_done = f'if [ "$(cat {name} 2>/dev/null)" = {mark} ]; then exit 0; fi' if step.fingerprint else ""
    done = f"printf %s {mark} > {name}.new && mv {name}.new {name}" if step.fingerprint else ""
    return f"""
cd "$HOME" && mkdir -p {shlex.quote(place.folder)}/done && cd {shlex.quote(place.folder)} || exit 1
exec 9> lock
flock -w {step.timeout_s:.0f} 9 || {{ echo "an earlier attempt still runs"; exit 1; }}
{is_done}
sh -ec {shlex.quote(step.script)} 9>&- || exit $?
{done}
"""
