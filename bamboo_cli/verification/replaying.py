"""Runs ``bamboo_trainer.replay`` in a process of its own: it imports torch, and the user's recipe."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator

from bamboo_trainer.control import encode
from bamboo_trainer.replay_order import Answer, ReplayOrder, decode_answer

from bamboo_cli.errors import BambooError

CANNOT = 1
"""Exit code when the steps cannot be computed again; standard error says why, in words for people."""


class ReplayFailedError(BambooError):
    """It ended before all steps were computed again."""


def replayed(order: ReplayOrder) -> Iterator[Answer]:
    """As they come. The process does not outlive the iteration. Raises ReplayFailedError."""
    command = [sys.executable, "-m", "bamboo_trainer.replay"]
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors) as process,
    ):
        assert process.stdin is not None and process.stdout is not None
        try:
            with process.stdin:
                process.stdin.write(encode(order))
            for line in process.stdout:
                yield decode_answer(line)
            returncode = process.wait()
        except BrokenPipeError:
            returncode = process.wait()
        finally:
            process.kill()  # does nothing once it has ended
        if returncode != 0:
            errors.seek(0)
            said = errors.read().decode(errors="replace").strip()
            raise ReplayFailedError(
                said if returncode == CANNOT else f"the replay ended with exit code {returncode}\n{said}"
            )
