"""Steps of preparing that wait until a test lets them go, on every machine.

Each step runs under ``timeout``, and its script begins with its name: the machines have a ``timeout`` of their own in
front of the system's, which looks whether the step is to wait, before it begins or when it is done. It waits for a
lock that the test has, and that ends with the test.
"""

import fcntl
import shutil
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path

from tests.aws.vm.init import SHARED

FOLDER = f"{SHARED}/held"
WAIT = f"{FOLDER}/before-wait"
"""Of a machine itself, where it is told to ``wait``."""
TIMEOUT = f"""#!/bin/sh
for script; do :; done
name=${{script#"# "}}; name=${{name%%:*}}
hold() {{
    file={FOLDER}/$1-$name
    [ -e "$file" ] || return 0
    ( touch "$file.met-$(hostname)-$$"; flock -s 8 ) 8< "$file" || true
}}
hold before
[ -e "{FOLDER}/after-$name" ] || exec /usr/bin/timeout "$@"
/usr/bin/timeout "$@"
code=$?
hold after
exit $code
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldStep:
    file: Path
    lock: TextIOWrapper

    def num_met(self) -> int:
        """So many tries of the step, on all machines, have come here."""
        return len(list(self.file.parent.glob(f"{self.file.name}.met-*")))

    def lift(self) -> None:
        self.file.unlink(missing_ok=True)
        self.lock.close()


def hold(step: str, *, after: bool = False) -> HeldStep:
    """``after``: it has done its work, and its end is not told."""
    folder = Path(FOLDER)
    folder.mkdir(exist_ok=True)
    folder.chmod(0o777)
    file = folder / f"{'after' if after else 'before'}-{step}"
    lock = file.with_name(f"{file.name}.new").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    Path(lock.name).replace(file)  # nobody finds it who does not find it locked
    return HeldStep(file=file, lock=lock)


def clear() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
