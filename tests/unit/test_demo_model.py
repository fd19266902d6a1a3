# SPDX-License-Identifier: Apache-2.0
"""The demo's model and the layouts that it is loaded in."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from gksm_bench.demo.convert import ensure_model, hf_name, to_bf16
from gksm_bench.demo.layout import PAGE, Layout, packed, torch
from gksm_bench.demo.model import ModelError, open_model
from gksm_bench.places import NoRoomError, roomy_folder

MIB = 1 << 20
ROOT = Path(__file__).parents[2]


def overlaps(layout: Layout, sizes: list[int]) -> bool:
    """Whether two tensors share a byte, or one leaves its segment."""
    spans = sorted(
        (place.segment, place.offset, place.offset + size)
        for place, size in zip(layout.places, sizes, strict=True)
    )
    outside = any(end > layout.segments[segment] for segment, _, end in spans)
    return outside or any(a[0] == b[0] and a[2] > b[1] for a, b in pairwise(spans))


def test_the_model_fills_129_pages() -> None:
    model = open_model(ensure_model(ROOT / "build" / "model"))
    sizes = [tensor.nbytes for tensor in model.tensors]
    assert len(sizes) == 272
    assert packed(sizes).segments == [129 * PAGE]
    starts = [tensor.start for tensor in model.tensors]
    assert starts == sorted(starts)
    assert all(a + n == b for a, n, b in zip(starts, sizes, starts[1:], strict=False))


def test_a_limit_loads_whole_tensors_only() -> None:
    model = open_model(ensure_model(ROOT / "build" / "model"), limit=60 * MIB)
    assert model.nbytes <= 60 * MIB
    assert model.tensors[0].nbytes == 27 * PAGE


def test_bf16_rounds_to_nearest_and_ties_to_even() -> None:
    values = np.array([1.0, 1.00390625, 1.01171875, -2.5, 3.0e38], dtype=np.float32)
    bits = np.frombuffer(to_bf16(values), dtype="<u2").astype(np.uint32) << 16
    assert bits.view(np.float32)[:4].tolist() == [1.0, 1.0, 1.015625, -2.5]


def test_unknown_tensor_names_are_refused() -> None:
    assert hf_name("blk.7.attn_q.weight") == "model.layers.7.self_attn.q_proj.weight"
    with pytest.raises(ModelError, match=r"blk\.0\.surprise\.weight"):
        hf_name("blk.0.surprise.weight")


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    whole = ensure_model(ROOT / "build" / "model")
    part = tmp_path / "part.safetensors"
    with whole.open("rb") as file:
        part.write_bytes(file.read(MIB))
    with pytest.raises(ModelError, match="ends before its tensor"):
        open_model(part)


@pytest.mark.parametrize(
    ("sizes", "segments"),
    [
        ([1], [2 * MIB]),
        ([MIB], [2 * MIB]),
        ([MIB + 1], [20 * MIB]),
        ([10 * MIB - 512], [20 * MIB]),
        ([10 * MIB], [10 * MIB]),
        ([10 * MIB + 1], [12 * MIB]),
        # Two that fit into one segment; a third that does not.
        ([8 * MIB, 8 * MIB, 8 * MIB], [20 * MIB, 20 * MIB]),
        # Small ones never come from a large segment.
        ([8 * MIB, 512 * 1024, 512 * 1024], [20 * MIB, 2 * MIB]),
        # A rest of 1 MiB or less is not split off.
        ([19 * MIB, 9 * MIB, 10 * MIB - 512], [20 * MIB, 20 * MIB]),
    ],
)
def test_segments_are_those_of_pytorchs_allocator(sizes: list[int], segments: list[int]) -> None:
    layout = torch(sizes)
    assert layout.segments == segments
    assert not overlaps(layout, sizes)


def test_the_models_own_layouts_lose_no_byte() -> None:
    sizes = [t.nbytes for t in open_model(ensure_model(ROOT / "build" / "model")).tensors]
    for layout in (packed(sizes), torch(sizes)):
        assert not overlaps(layout, sizes)
        assert len(layout.places) == len(sizes)


def test_a_folder_is_chosen_where_there_is_room_and_goes_again() -> None:
    with roomy_folder(MIB) as folder:
        (folder / "file").write_bytes(os.urandom(16))
        assert folder.is_dir()
    assert not folder.exists()
    with pytest.raises(NoRoomError, match="TMPDIR"), roomy_folder(1 << 60):
        pass
