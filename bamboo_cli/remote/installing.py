"""The steps from a fresh machine to one that can train. Pure."""

import hashlib
import shlex
from collections.abc import Iterable

from bamboo_cli.errors import StepError
from bamboo_cli.remote.facts import LOOK, Facts, Python, choose_python
from bamboo_cli.remote.settings import RemoteConfig
from bamboo_cli.remote.steps import LARGER_DISK, PYTHON, File, Luggage, Step

MEGABYTE = 1 << 20
BASE_BYTES = 300 * MEGABYTE
"""Of a node that finds torch on its image: our own wheel and what that needs."""
TORCH_BYTES = 8000 * MEGABYTE
"""Of torch and the CUDA libraries that its wheel needs, loaded and unpacked."""
CPU_TORCH_BYTES = 1500 * MEGABYTE
UNPACKED = 3
"""So many times the bytes of a wheel are needed to install it."""

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


def installing(facts: Facts, luggage: Luggage, config: RemoteConfig) -> tuple[Step, ...]:
    """Everything up to the agent's first start; what was done before is left out. Raises StepError."""
    python = choose_python(facts)
    steps = tuple(_chain(python, luggage, config))
    missing = tuple(step for step in steps if facts.done.get(step.name) != step.fingerprint)
    _check_space(facts, python, missing, luggage, config)
    return missing


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
            next_step=LARGER_DISK,
        )


# --- one by one ---------------------------------------------------------------------------------------------------


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
