"""Frames as bytes: a fixed head, the facts (MessagePack), the header and the body of the value. No pickle.

``head``: magic, lengths of facts, value header and body (network order). A peer that sends anything else is cut off.
"""

import struct
from typing import Any

import msgspec

from bamboo_trainer import wire
from bamboo_trainer.frames import Datum, FetchLayer, Frame, Held, LayerHere, LearnLayer, SyncState, Taught, Update
from bamboo_trainer.plan import StepSummary
from bamboo_trainer.schedule import Key, Share

HEAD = struct.Struct("!4sIIQ")
MAGIC = b"BMB2"
MAX_FACTS = 1 << 26
"""Bytes; a ``SyncState`` of ten thousand keys is under 1 MB."""
_encode_facts = msgspec.msgpack.Encoder().encode
_decode_facts = msgspec.msgpack.Decoder().decode


class FrameError(Exception):
    """These bytes are no frame of ours."""


def encode(frame: Frame) -> list[bytes | memoryview]:
    """Pieces to be sent one after the other; they share memory with the frame's tensors."""
    value: Any = None
    facts: dict[str, Any]
    match frame:
        case Datum():
            facts = {"t": "datum", "g": frame.generation, "s": frame.step, "k": frame.key, "l": frame.loss}
            value = frame.value
        case Held():
            facts = {
                "t": "held",
                "g": frame.generation,
                "s": frame.step,
                "losses": list(frame.losses.items()),
                "norms": list(frame.square_norms.items()),
                "stop": frame.stop,
                "digests": list(frame.digests.items()),
            }
        case SyncState():
            last = frame.last
            facts = {
                "t": "sync",
                "g": frame.generation,
                "s": frame.step,
                "have": list(frame.have),
                "last": None if last is None else _summary_facts(last),
                "stopped": frame.stopped,
                "losses": list(frame.losses.items()),
                "spared": list(frame.spared),
            }
        case FetchLayer():
            facts = {"t": "fetch", "g": frame.generation, "layer": frame.layer}
        case LayerHere():
            facts = {"t": "layer", "g": frame.generation, "layer": frame.layer}
            value = frame.state
        case LearnLayer():
            facts = {"t": "learn", "g": frame.generation, "layer": frame.layer}
        case Taught():
            facts = {"t": "taught", "g": frame.generation, "layer": frame.layer, "s": frame.step}
            value = frame.state
        case Update():
            facts = {
                "t": "update",
                "g": frame.generation,
                "layer": frame.layer,
                "summary": _summary_facts(frame.summary),
                "units": [(unit, len(chunks)) for unit, chunks in frame.sums.items()],
            }
            value = tuple(chunk for chunks in frame.sums.values() for chunk in chunks)
    header, body = wire.pack(value)
    text = _encode_facts(facts)
    head = HEAD.pack(MAGIC, len(text), len(header), sum(piece.nbytes for piece in body))
    return [head + text + header, *body]


def _summary_facts(summary: StepSummary) -> list[Any]:
    return [summary.step, summary.losses, summary.square_norms]


def _summary(facts: list[Any]) -> StepSummary:
    return StepSummary(step=facts[0], losses=tuple(facts[1]), square_norms=tuple(facts[2]))


def decode_head(head: bytes) -> tuple[int, int, int]:
    """Lengths of facts, value header and body. Raises FrameError."""
    magic, facts, header, body = HEAD.unpack(head)
    if magic != MAGIC or facts > MAX_FACTS or header > MAX_FACTS:
        raise FrameError(f"the peer does not speak this protocol: {head[:8]!r}")
    return facts, header, body


def decode(text: bytes, header: bytes, body: bytearray) -> Frame:
    """Raises FrameError."""
    try:
        return _build(_decode_facts(text), wire.unpack(header, body))
    except (ValueError, KeyError, TypeError, IndexError, msgspec.DecodeError) as error:
        raise FrameError(f"a frame that cannot be read: {error}") from error


def _build(facts: dict[str, Any], value: Any) -> Frame:
    generation = facts["g"]
    match facts["t"]:
        case "datum":
            key = Key(*facts["k"])
            return Datum(generation=generation, step=facts["s"], key=key, value=value, loss=facts["l"])
        case "held":
            return Held(
                generation=generation,
                step=facts["s"],
                losses=dict(facts["losses"]),
                square_norms=dict(facts["norms"]),
                stop=facts["stop"],
                digests=dict(facts["digests"]),
            )
        case "sync":
            last = facts["last"]
            return SyncState(
                generation=generation,
                step=facts["s"],
                have=frozenset(Key(*key) for key in facts["have"]),
                last=last and _summary(last),
                stopped=facts["stopped"],
                losses=dict(facts["losses"]),
                spared=frozenset(Share(*share) for share in facts["spared"]),
            )
        case "fetch":
            return FetchLayer(generation=generation, layer=facts["layer"])
        case "layer":
            return LayerHere(generation=generation, layer=facts["layer"], state=value)
        case "learn":
            return LearnLayer(generation=generation, layer=facts["layer"])
        case "taught":
            return Taught(generation=generation, layer=facts["layer"], step=facts["s"], state=value)
        case "update":
            chunks = iter(value)
            sums = {unit: [next(chunks) for _ in range(count)] for unit, count in facts["units"]}
            return Update(generation=generation, layer=facts["layer"], summary=_summary(facts["summary"]), sums=sums)
    raise FrameError(f"a frame of kind {facts['t']!r}")
