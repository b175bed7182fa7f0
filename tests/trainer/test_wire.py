import pytest
import torch
from bamboo_trainer.wire import ALIGNMENT, pack, unpack


def send(value):
    header, pieces = pack(value)
    return unpack(header, bytearray(b"".join(pieces)))


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool], ids=str
)
def test_a_tensor_arrives_with_its_bits_shape_and_dtype(dtype):
    sent = (torch.arange(24) % 7).to(dtype).reshape(2, 3, 4)

    received = send(sent)

    assert received.dtype == dtype
    assert torch.equal(received, sent)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,)], ids=str)
def test_scalars_and_empty_tensors_keep_their_shape(shape):
    assert send(torch.zeros(shape)).shape == torch.Size(shape)


def test_a_tensor_that_is_not_contiguous_arrives_in_row_major_order():
    sent = torch.arange(6.0).reshape(2, 3).t()
    assert torch.equal(send(sent), sent)


def test_a_layer_state_arrives_whole():
    state = {
        "layer": 3,
        "tensors": {"weight": torch.randn(3, 5), "step": torch.tensor(4.0)},
        "facts": {"lr": 0.1, "n": None},
    }

    received = send(state)

    assert received["layer"] == 3
    assert received["facts"] == {"lr": 0.1, "n": None}
    assert torch.equal(received["tensors"]["weight"], state["tensors"]["weight"])
    assert torch.equal(received["tensors"]["step"], state["tensors"]["step"])


def test_tuples_nest_and_nothing_is_a_value():
    received = send((torch.ones(2), None, (torch.zeros(1), "text")))
    assert received[1] is None
    assert received[2][1] == "text"
    assert send(None) is None


def test_neither_side_copies():
    sent = torch.zeros(4)
    header, pieces = pack((torch.ones(1), sent))
    sent[2] = 7.0
    body = bytearray(b"".join(pieces))

    received = unpack(header, body)[1]
    assert received[2] == 7.0, "packing shares the tensor's memory"

    body[ALIGNMENT : ALIGNMENT + 4] = bytes(torch.tensor(9.0).reshape(1).numpy().data)
    assert received[0] == 9.0, "unpacking shares the buffer's memory"


def test_what_cannot_be_sent_is_refused_by_name():
    with pytest.raises(TypeError, match="object cannot be sent"):
        pack(object())


def test_a_body_that_is_too_short_is_refused():
    header, pieces = pack(torch.zeros(8))
    with pytest.raises(ValueError, match="do not describe"):
        unpack(header, bytearray(b"".join(pieces)[:-1]))
