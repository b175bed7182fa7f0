"""Links between workers: one TCP connection a pair, a reader and a sender thread each, everything into one inbox.

Of a pair, the worker with the smaller id dials; it dials again for as long as both are in the plan. A broken link is
known at once (end of file); what was under way on it may be lost, and ``Executor.link_up`` makes up for that. Sockets
are shut down from outside to unblock a thread that waits for a frozen peer.
"""

import hashlib
import hmac
import json
import socket
import struct
import threading
import time
from collections.abc import Iterable

from bamboo_trainer.frames import Frame
from bamboo_trainer.link import Link, LinkDown, LinkUp, Post, receive_exactly
from bamboo_trainer.plan import Member, WorkerId

DIAL_TIMEOUT_S = 2.0
DIAL_AGAIN_S = (0.02, 0.05, 0.1, 0.25, 0.5)
_LENGTH = struct.Struct("!I")
_HELLO_LIMIT = 4096


def proof(secret: str, worker_id: str) -> str:
    """Shown when a link is opened; a stranger without the cluster's secret cannot make it."""
    return hmac.new(secret.encode(), worker_id.encode(), hashlib.sha256).hexdigest()


class SocketTransport:
    """``post`` is called from many threads with what happens; ``send`` and ``set_peers`` from the worker's loop."""

    def __init__(self, worker_id: WorkerId, address: str, secret: str, post: Post) -> None:
        self.worker_id = worker_id
        self._secret = secret
        self._post = post
        self._lock = threading.Lock()
        self._links: dict[WorkerId, Link] = {}
        self._wanted: dict[WorkerId, Member] = {}
        self._teachers: dict[WorkerId, Member] = {}
        self._dialling: set[WorkerId] = set()
        self._listener = socket.create_server((address, 0), backlog=128)
        self.address, self.port = address, int(self._listener.getsockname()[1])
        threading.Thread(target=self._listen, name="listener", daemon=True).start()

    def send(self, peer: WorkerId, frame: Frame) -> None:
        """Never blocks. Without a link the frame is dropped."""
        link = self._links.get(peer)
        if link is not None:
            link.send(frame)

    def set_peers(self, members: Iterable[Member], kept: frozenset[WorkerId] = frozenset()) -> None:
        """Keeps and makes links to ``members``, closes the others, but for those to ``kept``."""
        wanted = {member.worker_id: member for member in members if member.worker_id != self.worker_id}
        with self._lock:
            self._wanted, self._teachers = wanted, {}
            strangers = [self._links.pop(peer) for peer in list(self._links) if peer not in {*wanted, *kept}]
            to_dial = [m for m in wanted.values() if self._must_dial(m.worker_id)]
            self._dialling |= {member.worker_id for member in to_dial}
        for link in strangers:
            link.close()
        self._start_dialling(to_dial)

    def learn_from(self, members: Iterable[Member]) -> None:
        """Also makes links to these, which do not know of this worker: it dials, whoever has the smaller id. Until the
        next ``set_peers``."""
        with self._lock:
            self._teachers = {member.worker_id: member for member in members if member.worker_id not in self._wanted}
            to_dial = [m for m in self._teachers.values() if self._must_dial(m.worker_id)]
            self._dialling |= {member.worker_id for member in to_dial}
        self._start_dialling(to_dial)

    def _start_dialling(self, members: Iterable[Member]) -> None:
        for member in members:
            threading.Thread(target=self._dial, args=(member,), name=f"dial {member.worker_id}", daemon=True).start()

    def cut(self) -> None:
        """Drop every link and neither make nor take any: what a network partition does to this worker."""
        self._secret = ""
        self.close()

    def close(self) -> None:
        self.set_peers(())
        self._listener.close()

    def _must_dial(self, peer: WorkerId) -> bool:
        dials = self.worker_id < peer or peer in self._teachers
        return dials and peer not in self._links and peer not in self._dialling

    def _peer(self, worker_id: WorkerId) -> Member | None:
        """Whom this worker wants a link to."""
        return self._wanted.get(worker_id) or self._teachers.get(worker_id)

    def _dial(self, member: Member) -> None:
        """Until there is a link or the peer is no longer wanted."""
        attempt = 0
        while self._peer(member.worker_id) == member:
            connection = self._connect(member)
            if connection is not None:
                with self._lock:
                    self._dialling.discard(member.worker_id)
                self._add_link(member.worker_id, connection)
                return
            time.sleep(DIAL_AGAIN_S[min(attempt, len(DIAL_AGAIN_S) - 1)])
            attempt += 1
            if attempt == len(DIAL_AGAIN_S):
                self._post(LinkDown(member.worker_id, "cannot be reached"))  # a link that never was is missed by nobody
        with self._lock:
            self._dialling.discard(member.worker_id)
            again = self._peer(member.worker_id)
            dial = again is not None and self._must_dial(member.worker_id)
            if dial:
                self._dialling.add(member.worker_id)
        if again is not None and dial:  # the peer was wanted again while this thread was leaving
            self._dial(again)

    def _connect(self, member: Member) -> socket.socket | None:
        """None: not now. The dialler waits for the other's word: a link is up on both sides or on none."""
        try:
            connection = socket.create_connection((member.address, member.port), timeout=DIAL_TIMEOUT_S)
        except OSError:
            return None
        try:
            hello = json.dumps({"worker_id": self.worker_id, "proof": proof(self._secret, self.worker_id)}).encode()
            connection.sendall(_LENGTH.pack(len(hello)) + hello)
            if connection.recv(1) == b"+":
                return connection
        except OSError:
            pass  # as good as refused; the caller tries again
        connection.close()
        return None

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._welcome, args=(connection,), name="welcome", daemon=True).start()

    def _welcome(self, connection: socket.socket) -> None:
        peer = self._hear_hello(connection)
        if peer is None:
            connection.close()
            return
        self._add_link(peer, connection)

    def _hear_hello(self, connection: socket.socket) -> WorkerId | None:
        """The peer's id; None for a stranger."""
        try:
            connection.settimeout(DIAL_TIMEOUT_S)
            (length,) = _LENGTH.unpack(receive_exactly(connection, _LENGTH.size))
            if length > _HELLO_LIMIT:
                return None
            hello = json.loads(receive_exactly(connection, length))
            peer = hello["worker_id"]
            if not hmac.compare_digest(hello["proof"], proof(self._secret, peer)):
                return None
            connection.sendall(b"+")
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        return WorkerId(peer)

    def _add_link(self, peer: WorkerId, connection: socket.socket) -> None:
        link = Link(peer, connection, self._post, self._link_ended)
        with self._lock:
            old = self._links.get(peer)
            self._links[peer] = link
        if old is not None:
            old.close()
        self._post(LinkUp(peer))
        link.begin_to_read()

    def _link_ended(self, link: Link, detail: str) -> None:
        with self._lock:
            if self._links.get(link.peer) is not link:
                return  # closed by us, or the other thread of the link was first
            del self._links[link.peer]
            member = self._peer(link.peer)
            dial = member is not None and self._must_dial(link.peer)
            if dial:
                self._dialling.add(link.peer)
        link.close()
        if member is not None:
            self._post(LinkDown(link.peer, detail))
            if dial:
                self._dial(member)
