"""Environments for peers, which Bamboo does not depend on: made when first asked for, kept in the temp folder."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

INSTALL_S = 600.0


class NotInstalled(Exception):
    pass


def python_with(name: str, packages: Sequence[str], environment: dict[str, str] | None = None) -> Path:
    """The interpreter of an environment that has our torch and, installed after it, ``packages``. ``name``: what is
    imported to see whether all is there. Raises NotInstalled."""
    folder = Path(tempfile.gettempdir()) / f"bamboo-bench-{name}"
    python = folder / "bin" / "python"
    if (
        python.exists()
        and subprocess.run([python, "-c", f"import {name}"], capture_output=True, check=False).returncode == 0
    ):
        return python
    torch = f"torch=={version('torch').partition('+')[0]}"
    print(f"installing {', '.join(packages)} into {folder}", file=sys.stderr)
    install = [str(python), "-m", "pip", "install", "-q"]
    for command in (
        [sys.executable, "-m", "venv", str(folder)],
        [*install, torch, "setuptools", "wheel"],
        [*install, "--no-build-isolation", *packages],
    ):
        try:
            environ = os.environ | (environment or {})
            subprocess.run(command, capture_output=True, timeout=INSTALL_S, check=True, env=environ)
        except (OSError, subprocess.SubprocessError) as error:
            raise NotInstalled(f"{', '.join(packages)} could not be installed: {error}") from error
    return python
