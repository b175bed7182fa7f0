"""The gpt2 recipe's model as ``transformers`` knows it (``GPT2LMHeadModel``), with a tokenizer for its bytes."""

import json
from collections.abc import Mapping

from torch import Tensor

from bamboo_trainer.recipe import TransformersForm

_IN_BLOCK = {
    "norm_1": "ln_1",
    "qkv": "attn.c_attn",
    "projection": "attn.c_proj",
    "norm_2": "ln_2",
    "up": "mlp.c_fc",
    "down": "mlp.c_proj",
}
_LINEAR = ("qkv", "projection", "up", "down")
_OUTSIDE = {
    ("embedding", "tokens"): "wte",
    ("embedding", "positions"): "wpe",
    ("head", "norm"): "ln_f",
}


def form(*, depth: int, width: int, num_heads: int, context: int, dropout: float, vocabulary: int) -> TransformersForm:
    config = {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": vocabulary,
        "n_positions": context,
        "n_embd": width,
        "n_layer": depth,
        "n_head": num_heads,
        "activation_function": "gelu_pytorch_tanh",
        "embd_pdrop": dropout,
        "attn_pdrop": dropout,
        "resid_pdrop": dropout,
        "layer_norm_epsilon": 1e-5,
        "initializer_range": 0.02,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": None,
        "torch_dtype": "float32",
    }
    return TransformersForm(
        config=config,
        rename=rename,
        files={
            "tokenizer.json": json.dumps(_tokenizer(), indent=1, ensure_ascii=False),
            "tokenizer_config.json": json.dumps(
                {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": context}, indent=1
            ),
        },
    )


def rename(layer: str, parameters: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The head's tokens are the embedding's, so they are left out. Its linear layers keep (in, out), ours (out, in)."""
    found = {}
    for name, tensor in parameters.items():
        module, _, kind = name.partition(".")
        if layer.startswith("block."):
            linear = module in _LINEAR and kind == "weight"
            place = f"transformer.h.{layer.removeprefix('block.')}.{_IN_BLOCK[module]}.{kind}"
            found[place] = tensor.t().contiguous() if linear else tensor
        elif (layer, module) in _OUTSIDE:
            found[f"transformer.{_OUTSIDE[layer, module]}.{kind}"] = tensor
    return found


def _tokenizer() -> dict[str, object]:
    """Byte-pair encoding without a single pair: token i is byte i."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": {letter: byte for byte, letter in _letters().items()}, "merges": []},
    }


def _letters() -> dict[int, str]:
    """GPT-2's letter for each byte: itself where it can be seen, else the next free one from 256 on."""
    seen = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in seen]
    return {byte: chr(byte) for byte in seen} | {byte: chr(256 + n) for n, byte in enumerate(hidden)}
