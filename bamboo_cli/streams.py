"""Standard streams that take what is written, whatever the terminal's encoding is, and be they closed."""

import codecs
import io
import os
import sys

ASCII = str.maketrans("●○◐▲✕×▁▂▃▄▅▆▇█━─·…", "*o2!xx_.:-=+*##--~")
"""For where no more can be shown, sign by sign."""
HANDLER = "bamboo.ascii"


def prepare() -> None:
    """First of all, in a command's process.

    A closed stream leads nowhere from then on: else the next file that is opened, a state file, say, would take its
    number. What standard output cannot encode becomes ASCII.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # takes the lowest number that is free
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False, encoding="utf-8")
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False, encoding="utf-8")
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False, encoding="utf-8")
    codecs.register_error(HANDLER, _as_ascii)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors=HANDLER)


def takes_all_letters() -> bool:
    """Whether standard output can show whatever there is."""
    return codecs.lookup(sys.stdout.encoding or "ascii").name.startswith("utf")


def forget() -> None:
    """What standard output could not take: else Python tries it again in the end, and fails in a way of its own."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _as_ascii(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    text = error.object[error.start : error.end].translate(ASCII)
    return text.encode("ascii", "replace").decode("ascii"), error.end
