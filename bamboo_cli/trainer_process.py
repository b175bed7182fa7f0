"""A program of the trainer that is asked one thing and answers it: it imports torch, and the user's recipe."""

import json
import subprocess
from typing import TypeVar

from bamboo_trainer.control import encode
from pydantic import TypeAdapter

from bamboo_cli import check_process, output
from bamboo_cli.errors import BambooError
from bamboo_cli.recipe_check import missing_packages

CANNOT = 1
"""Exit code when it cannot be done; standard error says why, in words for people."""
LOOK_S = 0.2

Answer = TypeVar("Answer")


def ask(program: str, order: object, kind: type[Answer], *, what: str) -> Answer:
    """``program``: a module of ``bamboo_trainer``, whose process does not outlive this call. ``what``: is waited for.

    Raises BambooError with what it said, or when torch is missing.
    """
    missing = missing_packages()
    if missing:
        raise BambooError(
            f"this needs {', '.join(missing)}, which is not installed",
            next_step="Install it with: pip install 'bamboo-train[train]'",
        )
    returncode, stdout, stderr = _run(program, encode(order), what)
    said = stderr.decode(errors="replace").strip()
    if returncode == CANNOT:
        raise BambooError(said)
    if returncode != 0:
        raise BambooError(f"bamboo_trainer.{program} ended with exit code {returncode}\n{said}")
    return TypeAdapter(kind).validate_python(json.loads(stdout.splitlines()[-1]))


def _run(program: str, order: bytes, what: str) -> tuple[int, bytes, bytes]:
    with output.waiting(what) as saw, check_process.begin(f"bamboo_trainer.{program}") as process:
        while True:
            try:
                return process.communicate(order, timeout_s=LOOK_S)
            except subprocess.TimeoutExpired:  # asked again, without input, it goes on where it was
                order = b""
                saw("")
