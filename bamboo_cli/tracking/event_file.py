"""TensorBoard's event files: records of TFRecord, each a protocol buffer ``Event``. Pure.

Written here, since the libraries that do it load what the coordinator must not: tensorboardX all of torch where it is
installed (1.5 s, 220 MB), tensorboard's own writer numpy (0.3 s, 44 MB). Numbers of fields:
tensorboard/compat/proto/event.proto, summary.proto, tensor.proto.
"""

import struct
from collections.abc import Mapping

_POLYNOMIAL = 0x82F63B78
_MASK_DELTA = 0xA282EAD8
_DOUBLE, _BYTES, _FLOAT = 1, 2, 5
"""Wire types, beside 0, the variable-length integer."""
_DT_STRING = 7
_DATA_CLASS_TENSOR = 2
_SESSION_START = 1


def _crc_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
        table.append(byte)
    return tuple(table)


_TABLE = _crc_table()


def header(at: float) -> bytes:
    """The first record of a file. Only with it are later ones believed that say ``session_start``."""
    return _record(_number(1, at) + _text(3, b"brain.Event:2"))


def session_start(at: float, step: int) -> bytes:
    """What any file says of this step and later ones, before this record, does not count any more."""
    return _record(_number(1, at) + _integer(2, step) + _text(7, _integer(1, _SESSION_START)))


def scalars(at: float, step: int, values: Mapping[str, float]) -> bytes:
    parts = [_text(1, _text(1, tag.encode()) + _float(2, value)) for tag, value in values.items()]
    return _record(_number(1, at) + _integer(2, step) + _text(5, b"".join(parts)))


def text(at: float, step: int, tag: str, markdown: str) -> bytes:
    tensor = _integer(1, _DT_STRING) + _text(2, _text(2, _integer(1, 1))) + _text(8, markdown.encode())
    metadata = _text(1, _text(1, b"text")) + _integer(4, _DATA_CLASS_TENSOR)
    value = _text(1, tag.encode()) + _text(8, tensor) + _text(9, metadata)
    return _record(_number(1, at) + _integer(2, step) + _text(5, _text(1, value)))


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + _masked_crc(length) + data + _masked_crc(data)


def _masked_crc(data: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF)


def _varint(value: int) -> bytes:
    pieces = bytearray()
    while value > 0x7F:
        pieces.append(value & 0x7F | 0x80)
        value >>= 7
    pieces.append(value)
    return bytes(pieces)


def _key(field: int, wire_type: int) -> bytes:
    return _varint(field << 3 | wire_type)


def _integer(field: int, value: int) -> bytes:
    return _key(field, 0) + _varint(value)


def _number(field: int, value: float) -> bytes:
    return _key(field, _DOUBLE) + struct.pack("<d", value)


def _float(field: int, value: float) -> bytes:
    try:
        return _key(field, _FLOAT) + struct.pack("<f", value)
    except OverflowError:  # more than a float32 can hold
        return _key(field, _FLOAT) + struct.pack("<f", float("inf") if value > 0 else float("-inf"))


def _text(field: int, data: bytes) -> bytes:
    return _key(field, _BYTES) + _varint(len(data)) + data
