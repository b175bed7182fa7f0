"""A worker without torch that is ready at once, says each second that it lives, and is never given anything to do."""

import json
import os
import socket
import time

BEAT_S = 1.0


def main() -> None:
    with socket.socket(fileno=int(os.environ["BAMBOO_CONTROL_FD"])) as control:

        def say(kind: str, **fields: object) -> None:
            control.sendall(json.dumps({"kind": kind} | fields).encode() + b"\n")

        say("worker_ready", address=os.environ["BAMBOO_LISTEN_ADDRESS"], port=7, pid=os.getpid())
        try:
            while True:
                time.sleep(BEAT_S)
                say("worker_beat")
        except OSError:  # its agent has ended
            return


if __name__ == "__main__":
    main()
