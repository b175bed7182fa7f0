"""A script: ``bamboo ARGUMENTS...``, killed (-9) just before one of its deeds, counted from 0.

    python killed_at.py NUMBER RECORD ARGUMENTS...

Deeds are what others can see: a file or folder of ``BAMBOO_HOME`` made, renamed, linked or removed, a process started.
RECORD lists them. Looking whether a coordinator lives is none: how often a command does depends on its machine.
"""

import os
import signal
import sys

FILES = ("os.mkdir", "os.rename", "os.link", "os.remove")
START = "subprocess.Popen"


def main() -> None:
    number, home = int(sys.argv[1]), os.environ["BAMBOO_HOME"]
    record = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    num_done = 0

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal num_done
        makes = event == "open" and isinstance(arguments[2], int) and arguments[2] & os.O_CREAT
        if event != START and not ((makes or event in FILES) and home in str(arguments[0])):
            return
        os.write(record, f"{event} {arguments[0]}\n".encode())
        if num_done == number:
            os.write(record, b"killed\n")
            os.kill(os.getpid(), signal.SIGKILL)
        num_done += 1

    sys.addaudithook(watch)
    sys.argv = ["bamboo", *sys.argv[3:]]
    from bamboo_cli.main import main as bamboo

    bamboo()


if __name__ == "__main__":
    main()
