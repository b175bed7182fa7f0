"""The `bamboo` command as a process of its own, with nobody at the terminal."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path


def bamboo(*arguments: str, home: Path, environment: Mapping[str, str] = {}) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "bamboo_cli.main", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
        env={"BAMBOO_HOME": str(home), "PATH": "/usr/bin:/bin", **environment},
    )
