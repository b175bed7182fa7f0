"""A worker process, as its agent starts it: ``python -m bamboo_trainer`` with the control socket and its place in the
environment. It ends when that socket closes, so no worker outlives its agent.
"""

import functools
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue

from bamboo_trainer import control
from bamboo_trainer.compute import Compute
from bamboo_trainer.device import FAILURES, Device, find_device
from bamboo_trainer.drill import DrillExecutor, strike
from bamboo_trainer.executor import Executor, Report, Send
from bamboo_trainer.loop import Inbox, WorkerLoop
from bamboo_trainer.plan import NodeId, WorkerId
from bamboo_trainer.torch_compute import warm_up
from bamboo_trainer.transport import SocketTransport
from bamboo_trainer.wrapping import ExecutorLike

log = logging.getLogger("bamboo.worker")

SWITCH_S = 0.0005
"""How long the thread that computes may keep the interpreter from those that send and receive (Python: 5 ms): all peers
wait for what these have. Measured: 1 % of a step of 0.4 s."""
DEVICE_FAILED = 4
"""Exit code."""


class AgentChannel:
    """JSON lines to and from the agent. ``say`` may be called from any thread."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def say(self, message: control.FromWorker) -> None:
        with self._lock:
            self._connection.sendall(control.encode(message) + b"\n")

    def listen(self, inbox: Inbox) -> None:
        """Posts what the agent says, for ever; when the agent is gone, so is this process."""
        with self._connection.makefile("rb") as lines:
            for line in lines:
                inbox.put(control.decode_to_worker(line))
        log.warning("the agent is gone; exiting")
        os._exit(0)

    def beat(self, every_s: float) -> None:
        stop = threading.Event()
        while not stop.wait(every_s):
            self.say(control.WorkerBeat())


def main(find_device: Callable[[control.DeviceWish], Device] = find_device) -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname).1s %(message)s", stream=sys.stderr)
    environment = os.environ
    worker_id = WorkerId(environment["BAMBOO_WORKER_ID"])
    node_id = NodeId(environment["BAMBOO_NODE_ID"])
    channel = AgentChannel(socket.socket(fileno=int(environment["BAMBOO_CONTROL_FD"])))
    inbox: Inbox = SimpleQueue()

    def make_executor(
        worker_id: WorkerId, spec: control.TrainingSpec, compute: Compute, send: Send, report: Report
    ) -> ExecutorLike:
        if not spec.kills:
            return Executor(worker_id, spec, compute, send, report)
        strike_here = functools.partial(strike, cut=transport.cut)
        return DrillExecutor(node_id, strike_here, worker_id, spec, compute, send, report)

    loop = WorkerLoop(worker_id, inbox, channel.say, make_executor, find_device=find_device)
    transport = SocketTransport(
        worker_id,
        environment.get("BAMBOO_LISTEN_ADDRESS", "127.0.0.1"),
        environment.get("BAMBOO_LINK_SECRET", ""),
        loop.post,
    )
    beat_s = float(environment.get("BAMBOO_BEAT_S", "1"))
    threading.Thread(target=channel.listen, args=(inbox,), name="agent", daemon=True).start()
    threading.Thread(target=channel.beat, args=(beat_s,), name="beat", daemon=True).start()
    warm_up()
    sys.setswitchinterval(SWITCH_S)
    channel.say(control.WorkerReady(address=transport.address, port=transport.port, pid=os.getpid()))
    log.info("worker %s listens on %s:%d", worker_id, transport.address, transport.port)
    try:
        loop.run(transport)
    except FAILURES:  # like a machine that is lost: the run goes on without it, and another worker may do better
        log.exception("the device failed")
        os._exit(DEVICE_FAILED)  # what it is at may not let the process end in good order
    except BaseException as error:  # the edge: a bug is reported, also sys.exit in a recipe, then the process ends
        log.exception("bug")
        channel.say(control.WorkerFailed(fault="bug", detail=f"{type(error).__name__}: {error}"))
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
