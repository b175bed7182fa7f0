"""The links of agents, over real WebSockets on the loopback."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from bamboo_agent.messages import (
    PROTOCOL_VERSION,
    Acknowledge,
    Beat,
    Envelope,
    Hint,
    Join,
    Refused,
    Welcome,
    decode_to_agent,
)
from bamboo_trainer.control import encode
from bamboo_trainer.plan import NodeId
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from bamboo_cli.coordinator.events import AgentBeat, AgentDropped, AgentSaid, Event, StrangerRefused
from bamboo_cli.coordinator.server import AgentServer, Link
from bamboo_cli.errors import StateError
from tests.waiting import until

SECRET = "the secret of this cluster"
JOIN = Join(
    protocol_version=PROTOCOL_VERSION,
    node_id=NodeId("n1"),
    boot_id="boot-1",
    instance_id="i-1",
    zone="a",
    address="127.0.0.1",
    pid=1,
    workers=(),
)
NOTED = Envelope(sequence=1, sent_at=0.0, message=Hint(detail="soon"))


class Coordinator:
    """A server, and everything it has heard. Admits whoever introduces himself, until told otherwise."""

    def __init__(self) -> None:
        self.links: list[Link] = []
        self.heard: list[Event] = []
        self.admits = True
        self.server = AgentServer(secret=SECRET, join=self._join, hear=self.heard.append)
        self.port = 0

    def _join(self, link: Link) -> None:
        self.links.append(link)
        if self.admits:
            self.server.admit(link)

    def connect(self, secret: str = SECRET, path: str = "/agent") -> connect:
        headers = {"Authorization": f"Bearer {secret}"}
        return connect(f"ws://127.0.0.1:{self.port}{path}", additional_headers=headers)


@asynccontextmanager
async def coordinator() -> AsyncIterator[Coordinator]:
    served = Coordinator()
    served.port = await served.server.start("127.0.0.1", 0)
    try:
        yield served
    finally:
        await served.server.stop()


def run(test: Callable[[Coordinator], Awaitable[None]]) -> None:
    async def within() -> None:
        async with coordinator() as served:
            await test(served)

    asyncio.run(within())


async def say(connection: ClientConnection, message: object) -> None:
    await connection.send(encode(message).decode())


def test_what_an_agent_says_is_heard_in_order_once_it_is_admitted() -> None:
    async def scenario(served: Coordinator) -> None:
        served.admits = False
        async with served.connect() as agent:
            await say(agent, JOIN)
            await say(agent, Beat(silence_s={"n1/1": 0.5}))
            await say(agent, NOTED)
            await until(lambda: len(served.links) == 1, "the Join")
            assert served.heard == []

            served.server.admit(served.links[0])
            await until(lambda: len(served.heard) == 2, "a beat and an envelope")

        assert served.heard[:2] == [
            AgentBeat(node_id=NodeId("n1"), silence_s={"n1/1": 0.5}),
            AgentSaid(node_id=NodeId("n1"), message=NOTED.message, boot_id="boot-1", sequence=1),
        ]
        await until(lambda: served.heard[-1] == AgentDropped(node_id=NodeId("n1")), "the end of the link")

    run(scenario)


def test_an_agent_is_told_things_in_order_and_a_node_without_a_link_nothing() -> None:
    async def scenario(served: Coordinator) -> None:
        async with served.connect() as agent:
            await say(agent, JOIN)
            await until(lambda: len(served.links) == 1, "the Join")
            served.server.send(NodeId("n1"), Welcome(acknowledged=0, beat_s=1.0))
            served.server.send(NodeId("n2"), Acknowledge(sequence=9))
            served.server.send(NodeId("n1"), Acknowledge(sequence=1))

            assert decode_to_agent(await agent.recv()) == Welcome(acknowledged=0, beat_s=1.0)
            assert decode_to_agent(await agent.recv()) == Acknowledge(sequence=1)

    run(scenario)


@pytest.mark.parametrize("secret", ["", "guess", SECRET + "x", "ü"])
def test_an_agent_without_the_secret_is_refused_and_told_of_once(secret: str) -> None:
    async def scenario(served: Coordinator) -> None:
        for _ in range(3):
            with pytest.raises(InvalidStatus) as caught:
                async with served.connect(secret=secret.encode().decode("latin-1")):
                    pass
            assert caught.value.response.status_code == 401

        assert served.heard == [StrangerRefused(address="127.0.0.1", detail="without the cluster's secret")]
        assert served.links == []

    run(scenario)


def test_other_paths_are_not_found() -> None:
    async def scenario(served: Coordinator) -> None:
        with pytest.raises(InvalidStatus) as caught:
            async with served.connect(path="/"):
                pass
        assert caught.value.response.status_code == 404

    run(scenario)


def test_an_agent_of_another_version_is_refused_for_good() -> None:
    async def scenario(served: Coordinator) -> None:
        async with served.connect() as agent:
            await say(agent, replace(JOIN, protocol_version=PROTOCOL_VERSION + 1))
            answer = decode_to_agent(await agent.recv())

        assert isinstance(answer, Refused) and answer.final and "version" in answer.reason
        assert served.links == []

    run(scenario)


@pytest.mark.parametrize("first", ["nonsense", '{"kind": "beat", "silence_s": {}}', '{"kind": "join"}', "[]"])
def test_whoever_does_not_introduce_himself_is_turned_away_and_told_of(first: str) -> None:
    async def scenario(served: Coordinator) -> None:
        async with served.connect() as agent:
            await agent.send(first)
            with pytest.raises(ConnectionClosed):
                await agent.recv()

        assert [type(event) for event in served.heard] == [StrangerRefused]
        assert served.links == []

    run(scenario)


def test_a_message_that_does_not_parse_closes_the_link_and_is_told() -> None:
    async def scenario(served: Coordinator) -> None:
        async with served.connect() as agent:
            await say(agent, JOIN)
            await agent.send('{"kind": "envelope", "sequence": 1}')
            with pytest.raises(ConnectionClosed):
                await agent.recv()
            await until(lambda: len(served.heard) == 2, "the refusal and the end of the link")

        assert isinstance(served.heard[0], StrangerRefused) and "n1 sent what is no message" in served.heard[0].detail
        assert served.heard[1] == AgentDropped(node_id=NodeId("n1"))

    run(scenario)


def test_a_newer_link_of_a_node_replaces_the_older_whose_end_is_no_event() -> None:
    async def scenario(served: Coordinator) -> None:
        async with served.connect() as older, served.connect() as newer:
            await say(older, JOIN)
            await until(lambda: len(served.links) == 1, "the first Join")
            await say(newer, JOIN)
            with pytest.raises(ConnectionClosed):
                await older.recv()
            served.server.send(NodeId("n1"), Acknowledge(sequence=3))

            assert decode_to_agent(await newer.recv()) == Acknowledge(sequence=3)
            assert served.heard == []

    run(scenario)


def test_a_refused_newcomer_leaves_the_link_of_its_node_alone() -> None:
    async def scenario(served: Coordinator) -> None:
        async with served.connect() as older, served.connect() as newcomer:
            await say(older, JOIN)
            await until(lambda: len(served.links) == 1, "the first Join")
            served.admits = False
            await say(newcomer, replace(JOIN, boot_id="boot-0"))
            await until(lambda: len(served.links) == 2, "the second Join")
            served.server.refuse(served.links[1], "its life is over", final=True)

            assert decode_to_agent(await newcomer.recv()) == Refused(reason="its life is over", final=True)
            with pytest.raises(ConnectionClosed):
                await newcomer.recv()
            served.server.send(NodeId("n1"), Acknowledge(sequence=1))
            assert decode_to_agent(await older.recv()) == Acknowledge(sequence=1)
            assert served.heard == []

    run(scenario)


def test_the_port_can_be_bound_again_at_once_while_an_agent_was_linked() -> None:
    async def scenario(served: Coordinator) -> None:
        async with served.connect() as agent:
            await say(agent, JOIN)
            await until(lambda: len(served.links) == 1, "the Join")
            await served.server.stop()

            again = Coordinator()
            assert await again.server.start("127.0.0.1", served.port) == served.port
            await again.server.stop()

    run(scenario)


def test_a_port_that_is_taken_is_said_and_what_to_do() -> None:
    async def scenario(served: Coordinator) -> None:
        with pytest.raises(StateError, match=f"127.0.0.1:{served.port}"):
            await Coordinator().server.start("127.0.0.1", served.port)

    run(scenario)


def test_an_agent_that_does_not_read_holds_nobody_up() -> None:
    async def scenario(served: Coordinator) -> None:
        big = Refused(reason="x" * 1_000_000, final=False)
        async with served.connect() as frozen, served.connect() as other:
            frozen.transport.pause_reading()
            await say(frozen, JOIN)
            await say(other, replace(JOIN, node_id=NodeId("n2")))
            await until(lambda: len(served.links) == 2, "both")
            for _ in range(20):
                served.server.send(NodeId("n1"), big)
            served.server.send(NodeId("n2"), Acknowledge(sequence=1))

            assert decode_to_agent(await other.recv()) == Acknowledge(sequence=1)
            frozen.transport.abort()

    run(scenario)


def test_stopping_does_not_wait_for_a_link_that_was_never_decided() -> None:
    async def scenario(served: Coordinator) -> None:
        served.admits = False
        async with served.connect() as agent:
            await say(agent, JOIN)
            await until(lambda: len(served.links) == 1, "the Join")
            async with asyncio.timeout(5):
                await served.server.stop()

    run(scenario)
