"""Links between workers, over real sockets."""

import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from queue import SimpleQueue

import pytest
import torch
from bamboo_trainer import framing
from bamboo_trainer.frames import Datum, FetchLayer, Frame, Held, LayerHere, LearnLayer, SyncState, Taught, Update
from bamboo_trainer.link import BUFFER_BYTES, FrameArrived, FromPeers, Incoming, LinkDown, LinkUp
from bamboo_trainer.plan import Member, NodeId, StepSummary, WorkerId
from bamboo_trainer.schedule import Share, backward_key, forward_key, partial_key
from bamboo_trainer.transport import SocketTransport

A, B = WorkerId("a/1"), WorkerId("b/1")
DEADLINE_S = 10.0


class Side:
    """One end: its transport and what it heard."""

    def __init__(self, worker_id: WorkerId, secret: str = "s") -> None:
        self.heard: SimpleQueue[FromPeers] = SimpleQueue()
        self.transport = SocketTransport(worker_id, "127.0.0.1", secret, self.heard.put)
        self.member = Member(
            worker_id=worker_id, node_id=NodeId("n"), address=self.transport.address, port=self.transport.port
        )

    def wait_for(self, wanted: Callable[[FromPeers], bool]) -> FromPeers:
        end = time.monotonic() + DEADLINE_S
        while True:
            item = self.heard.get(timeout=max(0.01, end - time.monotonic()))
            if wanted(item):
                return item


@pytest.fixture
def sides() -> Iterator[tuple[Side, Side]]:
    first, second = Side(A), Side(B)
    for side in (first, second):
        side.transport.set_peers((first.member, second.member))
    yield first, second
    first.transport.close()
    second.transport.close()


def test_frames_keep_their_order_when_the_socket_takes_only_a_part(sides: tuple[Side, Side]) -> None:
    first, second = sides
    first.wait_for(lambda item: item == LinkUp(B))
    sizes = [1, 4_000_000, 1, 3_000_000, 2, 1] * 3
    for number, size in enumerate(sizes):
        key = forward_key(0, 1, number)
        first.transport.send(B, Datum(generation=2, step=4, key=key, value=torch.full((size,), float(number))))
    for number, size in enumerate(sizes):
        arrived = second.wait_for(lambda item: isinstance(item, FrameArrived))
        assert isinstance(arrived, FrameArrived) and isinstance(arrived.frame, Datum)
        assert arrived.frame.key == forward_key(0, 1, number)
        assert torch.equal(arrived.frame.value, torch.full((size,), float(number)))


def test_every_kind_of_frame_arrives_as_it_was_sent(sides: tuple[Side, Side]) -> None:
    first, second = sides
    first.wait_for(lambda item: item == LinkUp(B))
    summary = StepSummary(step=3, losses=(1.5, float("inf")), square_norms=(0.1,))
    frames: list[Frame] = [
        Datum(generation=2, step=4, key=forward_key(0, 1, 2), value=torch.arange(6.0).view(2, 3)),
        Datum(generation=2, step=4, key=backward_key(0, 1, 2), value=torch.ones(3, dtype=torch.bfloat16), loss=0.25),
        Held(generation=2, step=4, losses={7: 0.1}, square_norms={0: 2.5}, stop=True, digests={3: "ab"}),
        SyncState(generation=2, step=4, have=frozenset({forward_key(0, 1, 2)}), last=summary, stopped=False),
        SyncState(
            generation=2,
            step=4,
            have=frozenset({partial_key(3, 0, 2)}),
            last=None,
            stopped=True,
            losses={2: 0.5},
            spared=frozenset({Share(0, 1, 2)}),
        ),
        FetchLayer(generation=2, layer=5),
        LayerHere(generation=2, layer=5, state={"w": torch.zeros(2), "step": 3}),
        LearnLayer(generation=2, layer=5),
        Taught(generation=2, layer=5, step=6, state={"w": torch.ones(2), "step": 3}),
        Update(generation=2, layer=5, summary=summary, sums={4: [torch.ones(2), torch.zeros(1)], 7: [torch.ones(3)]}),
    ]
    for frame in frames:
        first.transport.send(B, frame)
    for sent in frames:
        arrived = second.wait_for(lambda item: isinstance(item, FrameArrived))
        assert isinstance(arrived, FrameArrived) and arrived.peer == A
        if isinstance(sent, Datum) and isinstance(arrived.frame, Datum):
            assert torch.equal(arrived.frame.value, sent.value) and arrived.frame.value.dtype == sent.value.dtype
            assert (arrived.frame.key, arrived.frame.loss) == (sent.key, sent.loss)
        elif isinstance(sent, LayerHere) and isinstance(arrived.frame, LayerHere):
            assert torch.equal(arrived.frame.state["w"], sent.state["w"]) and arrived.frame.state["step"] == 3
        elif isinstance(sent, Taught) and isinstance(arrived.frame, Taught):
            assert torch.equal(arrived.frame.state["w"], sent.state["w"]) and arrived.frame.step == 6
        elif isinstance(sent, Update) and isinstance(arrived.frame, Update):
            assert (arrived.frame.layer, arrived.frame.summary) == (5, summary)
            assert {u: [c.tolist() for c in cs] for u, cs in arrived.frame.sums.items()} == {
                4: [[1.0, 1.0], [0.0]],
                7: [[1.0, 1.0, 1.0]],
            }
        else:
            assert arrived.frame == sent


def test_a_learner_dials_whoever_has_the_smaller_id_and_is_kept_through_a_failover() -> None:
    source, learner = Side(A), Side(B)
    source.transport.set_peers((source.member,))
    # when one that the source's plan does not know wants to learn from it
    learner.transport.learn_from((source.member,))
    learner.wait_for(lambda item: item == LinkUp(A))
    source.wait_for(lambda item: item == LinkUp(B))
    # then a plan that keeps its learners leaves the link, and one that does not ends it
    source.transport.set_peers((source.member,), frozenset({B}))
    source.transport.send(B, LearnLayer(generation=1, layer=3))
    arrived = learner.wait_for(lambda item: isinstance(item, FrameArrived | LinkDown))
    assert isinstance(arrived, FrameArrived)
    source.transport.set_peers((source.member,))
    learner.wait_for(lambda item: isinstance(item, LinkDown))
    # and the learner dials again, for as long as it wants to learn
    learner.wait_for(lambda item: item == LinkUp(A))
    learner.transport.close()
    source.transport.close()


def test_a_link_that_breaks_is_reported_and_made_again(sides: tuple[Side, Side]) -> None:
    first, second = sides
    first.wait_for(lambda item: item == LinkUp(B))
    second.wait_for(lambda item: item == LinkUp(A))
    # when the connection is reset under both
    second.transport._links[A]._connection.shutdown(socket.SHUT_RDWR)
    first.wait_for(lambda item: isinstance(item, LinkDown))
    # then the dialler makes it again and frames pass
    first.wait_for(lambda item: item == LinkUp(B))
    second.wait_for(lambda item: item == LinkUp(A))
    second.transport.send(A, FetchLayer(generation=1, layer=1))
    first.wait_for(lambda item: isinstance(item, FrameArrived))


def test_a_stranger_without_the_secret_gets_no_link() -> None:
    owner, stranger = Side(B), Side(A, secret="guess")
    owner.transport.set_peers((stranger.member,))
    stranger.transport.set_peers((owner.member,))
    with socket.create_connection((owner.transport.address, owner.transport.port)) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\n\r\n")
        raw.settimeout(DEADLINE_S)
        try:
            assert raw.recv(1) == b""
        except ConnectionResetError:
            pass  # as good as an end of file
    assert owner.heard.empty()
    owner.transport.close()
    stranger.transport.close()


def test_bytes_that_are_no_frame_end_the_link(sides: tuple[Side, Side]) -> None:
    first, second = sides
    second.wait_for(lambda item: item == LinkUp(A))
    first.wait_for(lambda item: item == LinkUp(B))
    first.transport._links[B]._connection.sendall(b"x" * framing.HEAD.size)
    down = second.wait_for(lambda item: isinstance(item, LinkDown))
    assert isinstance(down, LinkDown) and "does not speak this protocol" in down.detail


def test_closing_the_link_to_a_peer_that_does_not_read_unblocks_the_sender(sides: tuple[Side, Side]) -> None:
    first, _ = sides
    first.wait_for(lambda item: item == LinkUp(B))
    with socket.create_server(("127.0.0.1", 0)) as server:
        frozen = Member(
            worker_id=WorkerId("z/1"), node_id=NodeId("n"), address="127.0.0.1", port=server.getsockname()[1]
        )
        first.transport.set_peers((first.member, frozen))
        peer, _ = server.accept()
        with peer:
            peer.sendall(b"+")
            first.wait_for(lambda item: item == LinkUp(frozen.worker_id))
            link = first.transport._links[frozen.worker_id]
            first.transport.send(frozen.worker_id, LayerHere(generation=1, layer=0, state=torch.zeros(1 << 24)))
            # when the plan goes on without it
            first.transport.set_peers((first.member,))
            # then the sending thread ends
            link.writer.join(DEADLINE_S)
            assert not link.writer.is_alive()


@pytest.mark.parametrize("seed", range(5))
def test_what_comes_in_any_pieces_is_taken_in_any_others(seed: int) -> None:
    rng = random.Random(seed)
    sizes = [rng.choice((0, 1, 20, BUFFER_BYTES - 1, BUFFER_BYTES, 3 * BUFFER_BYTES + 7)) for _ in range(40)]
    message = rng.randbytes(sum(sizes))
    ours, theirs = socket.socketpair()

    def send() -> None:
        at = 0
        while at < len(message):
            at += theirs.send(message[at : at + rng.randrange(1, 2 * BUFFER_BYTES)])
        theirs.close()

    with ours:
        sender = threading.Thread(target=send)
        sender.start()
        incoming = Incoming(ours)
        assert b"".join(incoming.take(size) for size in sizes) == message
        with pytest.raises(OSError, match="closed the connection"):
            incoming.take(1)
        sender.join()
