"""Claim: copying the logs of 64 quiet nodes takes less than a hundredth of a core of the coordinator.

64 SSH connections to one real sshd, a folder with logs and a sender behind each. The processor time of this process is
measured with the connections alone, with quiet logs, and with a line on every node each second. What the senders take
on the nodes is told with it.

    python -m benchmarks.log_copies [--nodes 64] [--seconds 20]
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bamboo_cli.remote.bastion import Bastions
from bamboo_cli.remote.connection import connect
from bamboo_cli.remote.log_copy import LogCopy
from bamboo_cli.remote.steps import Place
from benchmarks.fleet import claim, finish
from tests.remote.machine import Machine, machine
from tests.waiting import wait_until

LINE = "2026-01-01 10:00:00,100 I step 17 of worker n1/1: loss 3.1415, 0.271 s\n"
LOG = "worker.log"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--seconds", type=int, default=20)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bamboo-bench-") as folder:
        here, bastions = Path(folder) / "nodes", Bastions()
        with machine(Path(folder) / "vm") as vm:
            places = [Place(cluster_id="bench-1", node_id=f"n{number}") for number in range(arguments.nodes)]
            logs = [_make(vm, place) for place in places]
            links = [connect(vm.reach, vm.known.private, bastions=bastions) for _ in places]
            alone = _cores(arguments.seconds, ())
            copies = [LogCopy(place, here / place.node_id) for place in places]
            for copy, link in zip(copies, links, strict=True):
                copy.use(link)
            wait_until(lambda: len(list(here.glob(f"*/{LOG}"))) == len(places), "the first line of each")
            before = _senders_s(vm)
            quiet = _cores(arguments.seconds, ())
            there = (_senders_s(vm) - before) / arguments.seconds / len(places)
            busy = _cores(arguments.seconds, logs)
            for link in links:
                link.close()
    return finish(
        "log_copies",
        [claim(f"cores of the coordinator for the logs of {len(places)} quiet nodes", quiet - alone, 0.01)],
        figures={
            "cores for the connections alone": alone,
            "more for a line a second of each node": busy - alone,
            "cores of a quiet node for its sender": there,
        },
    )


def _make(vm: Machine, place: Place) -> Path:
    folder = vm.home / place.folder
    (folder / "venv" / "bin").mkdir(parents=True)
    (folder / "venv" / "bin" / "python").symlink_to(sys.executable)
    (folder / LOG).write_text(LINE)
    (folder / "agent.log").write_text(LINE)
    return folder / LOG


def _cores(seconds: int, logs: Sequence[Path]) -> float:
    """Of this process, in the mean of that time; a line is written to each of ``logs`` every second."""
    began, used = time.monotonic(), 0.0
    for number in range(seconds):
        for log in logs:
            with log.open("a") as stream:
                stream.write(LINE)
        before = time.process_time()
        time.sleep(max(0.0, began + number + 1 - time.monotonic()))
        used += time.process_time() - before
    return used / (time.monotonic() - began)


def _senders_s(vm: Machine) -> float:
    """Seconds of the processor that all senders have taken."""
    times = [process.cpu_times() for process in vm.marked("-S")]
    return sum(one.user + one.system for one in times)


if __name__ == "__main__":
    sys.exit(main())
