"""Stored formats: what the quantisers lose, where each number stands in the file, and what a GGUF's blocks become."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from gguf.constants import GGMLQuantizationType
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from buddy_gen.errors import BuddyError
from buddy_gen.weights.blocks import (
    Bytes,
    Fields,
    Halves,
    dequantize,
    join_integers,
    pack_blocks,
    split_integers,
    unpack_blocks,
)
from buddy_gen.weights.formats import BF16, F16, F32, Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Format, q8
from buddy_gen.weights.gguf_blocks import BLOCK_FORMATS, from_gguf_blocks, gguf_type, to_gguf_blocks
from buddy_gen.weights.packed import unpack_panels
from buddy_gen.weights.quantizers import fit_line, quantize_rows
from buddy_gen.weights.raw_floats import bf16_to_f32
from buddy_gen.weights.safetensors_reader import SafetensorsSource
from buddy_gen.weights.storing import store_plain, store_weight

Floats = npt.NDArray[np.float32]
FORMATS = {
    "q8-32": q8(32),
    "q8-64": q8(64),
    "q8-128": q8(128),
    "q8-channel": q8(0),
    **{form.kind: form for form in (Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K)},
}


def _random(seed: int, *shape: int) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def _fields(form: Format, rows: int, columns: int, seed: int = 0) -> Fields:
    random = np.random.default_rng(seed)
    exact = form.of_columns(columns)
    shape = (rows, exact.groups(columns))

    def bytes_of(*inner: int) -> Bytes:
        return random.integers(0, 256, (*shape, *inner)).astype(np.uint8)

    def halves() -> Halves:
        return random.standard_normal((rows, exact.blocks(columns))).astype(np.float16)

    return Fields(
        bytes_of(exact.integer_bytes),
        halves(),
        halves() if exact.has_minimum else None,
        bytes_of(exact.high_bytes) if exact.high_bytes else None,
        bytes_of() if exact.has_factors else None,
        bytes_of() if exact.has_factors and exact.has_minimum else None,
    )


# Places


@given(st.sampled_from(sorted(FORMATS)), st.integers(1, 40), st.integers(1, 200), st.sampled_from([8, 16, 32]))
@settings(deadline=None, max_examples=60)
def test_blocks_give_back_their_fields(name: str, rows: int, columns: int, panel: int) -> None:
    form = FORMATS[name].of_columns(columns)
    fields = _fields(form, rows, columns)
    blocks = pack_blocks(fields, panel)
    assert blocks.shape == form.stored_shape((rows, columns), panel)
    back = unpack_blocks(blocks, form, rows)
    for field in dataclasses.fields(Fields):
        np.testing.assert_array_equal(getattr(back, field.name), getattr(fields, field.name))


@pytest.mark.parametrize("name", FORMATS)
def test_each_number_stands_where_the_documentation_says(name: str) -> None:
    rows, columns, panel = 19, 300, 8
    form = FORMATS[name].of_columns(columns)
    fields = _fields(form, rows, columns)
    blocks = pack_blocks(fields, panel)
    width, several = form.integer_bytes, form.encoding.groups
    parts = [width, form.high_bytes, int(fields.factors is not None), int(fields.minimum_factors is not None)]
    group_bytes = sum(parts) * panel
    for n in range(rows):
        for g in range(form.groups(columns)):
            block, j = blocks[n // panel, g // several], n % panel
            group = block[g % several * group_bytes :][:group_bytes]
            quads = group[: (parts[0] + parts[1]) * panel].reshape(-1, panel, 4)
            np.testing.assert_array_equal(quads[: width // 4, j].reshape(-1), fields.integers[n, g])
            if fields.high is not None:
                np.testing.assert_array_equal(quads[width // 4, j], fields.high[n, g])
            if fields.factors is not None:
                assert group[(parts[0] + parts[1]) * panel + j] == fields.factors[n, g]
            if fields.minimum_factors is not None:
                assert group[(parts[0] + parts[1] + 1) * panel + j] == fields.minimum_factors[n, g]
            halves = block[several * group_bytes :].view(np.float16)
            assert halves[j] == fields.scales[n, g // several]
            if fields.minima is not None:
                assert halves[panel + j] == fields.minima[n, g // several]
    ends = blocks[-1][:, several * group_bytes :].reshape(blocks.shape[1], -1, panel, 2)
    assert not ends[:, :, rows % panel :].any(), "rows past N have a scale"


@given(st.sampled_from([(4, 32), (5, 32), (6, 16)]), st.integers(0, 99))
@settings(deadline=None, max_examples=20)
def test_upper_bits_stand_where_the_documentation_says(sizes: tuple[int, int], seed: int) -> None:
    bits, group = sizes
    values = np.random.default_rng(seed).integers(0, 1 << bits, (2, 3, group)).astype(np.uint8)
    nibbles, high = split_integers(values, bits)
    np.testing.assert_array_equal(join_integers(nibbles, high, bits), values)
    quads = group // 8
    for half in range(2):
        for quad in range(quads):
            for r in range(4):
                value = values[:, :, half * group // 2 + 4 * quad + r]
                np.testing.assert_array_equal(nibbles[:, :, 4 * quad + r] >> (4 * half) & 15, value & 15)
                if high is not None:
                    place = (bits - 4) * (half * quads + quad)
                    np.testing.assert_array_equal(high[:, :, r] >> place & ((1 << (bits - 4)) - 1), value >> 4)


# Quantisers


@given(st.integers(1, 9), st.integers(1, 150), st.sampled_from([0, 32, 64, 128]), st.integers(0, 99))
@settings(deadline=None, max_examples=40)
def test_int8_rounds_to_the_nearest_step(rows: int, columns: int, group: int, seed: int) -> None:
    weight = _random(seed, rows, columns) * np.float32(3)
    form = q8(group).of_columns(columns)
    fields = quantize_rows(weight, form)
    got = dequantize(fields, "q8")
    assert not got[:, columns:].any()
    steps = np.repeat(fields.scales.astype(np.float32), form.group, axis=1)[:, :columns]
    # The largest weight of a group may lie past 127 rounded steps, by the rounding of the scale.
    assert np.all(np.abs(got[:, :columns] - weight) <= steps * (0.5 + 127 * 2.0**-11))


def _brute_force(group: Floats) -> float:
    """The least squared error over a fine grid of lines."""
    low, high = float(group.min()), float(group.max())
    span = high - low
    d = np.linspace(span * 0.6 / 15, span * 1.1 / 15, 160)[:, None, None]
    m = (low + np.linspace(-0.1, 0.35, 160) * span)[None, :, None]
    q = np.clip(np.rint((group - m) / d), 0, 15)
    return float(((q * d + m - group) ** 2).sum(axis=2).min())


@pytest.mark.parametrize("size", [20, 32])
def test_four_bits_come_close_to_a_brute_force_search(size: int) -> None:
    groups = _random(3, 30, size)
    groups[::3] **= 3  # with outliers
    q, d, m = fit_line(groups)
    values = q * d.astype(np.float32)[:, None] + m.astype(np.float32)[:, None]
    errors = ((values - groups) ** 2).sum(axis=1)
    low, span = groups.min(axis=1, keepdims=True), np.ptp(groups, axis=1)[:, None]
    plain = np.rint((groups - low) / span * 15) * span / 15 + low
    best = np.array([_brute_force(group) for group in groups])
    assert np.sum(errors) < 1.12 * np.sum(best)
    assert np.sum(errors) < 0.85 * np.sum((plain - groups) ** 2)


def test_weights_on_a_grid_of_four_bits_lose_nothing() -> None:
    random = np.random.default_rng(1)
    q = random.integers(0, 16, (50, 32))
    q[:, 0], q[:, 1] = 0, 15
    d = (np.abs(random.standard_normal(50)) + 0.01).astype(np.float16).astype(np.float32)
    m = random.standard_normal(50).astype(np.float16).astype(np.float32)
    weight = (q * d[:, None] + m[:, None]).astype(np.float32)
    np.testing.assert_allclose(dequantize(quantize_rows(weight, Q4_1), "q4_1"), weight, rtol=0, atol=2e-6)


@pytest.mark.parametrize("form", [q8(32), q8(0), Q4_1], ids=str)
@pytest.mark.parametrize("value", [0.0, 1.0, -0.125, 1e-30])
def test_groups_of_one_value(form: Format, value: float) -> None:
    weight = np.full((3, 40), value, np.float32)
    got = dequantize(quantize_rows(weight, form), form.kind)[:, :40]
    np.testing.assert_allclose(got, weight, rtol=1e-3, atol=1e-7)


def test_small_weights_keep_their_size() -> None:
    weight = _random(0, 4, 64) * np.float32(1e-6)
    got = dequantize(quantize_rows(weight, q8(64)), "q8")
    assert np.abs(got - weight).max() <= 2.0**-24


@pytest.mark.parametrize("form", [q8(64), Q4_1], ids=str)
def test_scales_past_half_precision_are_refused(form: Format) -> None:
    with pytest.raises(BuddyError, match="half precision"):
        quantize_rows(_random(0, 2, 64) * np.float32(1e8), form)


# A GGUF's blocks


@given(st.sampled_from(sorted(BLOCK_FORMATS)), st.integers(1, 40), st.sampled_from([8, 16, 32]), st.integers(0, 99))
@settings(deadline=None, max_examples=80)
def test_gguf_blocks_are_kept_bit_for_bit(kind: str, rows: int, panel: int, seed: int) -> None:
    """Random bytes: whatever stands in a file comes back, and means what the gguf package says it does."""
    form, ggml = BLOCK_FORMATS[kind], GGMLQuantizationType[kind.upper()]
    weights, size = gguf.GGML_QUANT_SIZES[ggml]
    raw = np.random.default_rng(seed).integers(0, 256, (rows, 3 * size)).astype(np.uint8)
    fields = from_gguf_blocks(raw, form)
    blocks = pack_blocks(fields, panel)
    assert blocks.shape == form.stored_shape((rows, 3 * weights), panel)
    assert blocks[0, 0].nbytes / (form.group * form.encoding.groups) <= 1.03 * panel * size / weights
    np.testing.assert_array_equal(to_gguf_blocks(unpack_blocks(blocks, form, rows)), raw)
    with np.errstate(invalid="ignore", over="ignore"):
        np.testing.assert_array_equal(dequantize(fields, form.kind), gguf.quants.dequantize(raw, ggml))


@pytest.mark.parametrize("kind", BLOCK_FORMATS)
def test_kinds_have_the_names_of_a_gguf(kind: str) -> None:
    assert gguf_type(BLOCK_FORMATS[kind].kind) == kind.upper()


# From a checkpoint


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SafetensorsSource:
    bad = _random(0, 40, 12)
    nan, infinite, large = bad.copy(), bad.copy(), bad.copy()
    nan[33, 5], infinite[33, 5], large[33, 5] = np.nan, np.inf, 70000
    tensors = {"w": _random(1, 101, 72), "nan": nan, "infinite": infinite, "large": large, "norm": _random(2, 7)}
    tensors["enormous"] = np.full((2, 12), 3.4e38, np.float32)
    save_file(tensors, tmp_path / "m.safetensors")
    monkeypatch.setattr("buddy_gen.weights.storing._BLOCK_ELEMENTS", 16 * 72 * 2)
    return SafetensorsSource(tmp_path / "m.safetensors")


@pytest.mark.parametrize("name", ["q8-64", "q8-channel", "q4_1"])
def test_a_weight_is_quantised_in_pieces_as_in_whole(source: SafetensorsSource, name: str) -> None:
    whole = pack_blocks(quantize_rows(source.read("w"), FORMATS[name]), 16)
    np.testing.assert_array_equal(store_weight(source, "w", FORMATS[name], 16), whole)


@pytest.mark.parametrize("form", [F32, F16, BF16], ids=str)
def test_floats_in_panels(source: SafetensorsSource, form: Format) -> None:
    weight = source.read("w")
    stored = store_weight(source, "w", form, 16)
    plain = store_plain(source, "w", form)
    np.testing.assert_array_equal(unpack_panels(stored, 101), plain)
    wide = bf16_to_f32(plain) if form == BF16 else plain.astype(np.float32)
    bits = {"f32": 30, "f16": 11, "bf16": 8}[form.kind]
    assert np.all(np.abs(wide - weight) <= np.abs(weight) * 2.0**-bits)
    assert store_plain(source, "norm", F32).shape == (7,)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False, max_value=2.0**127, min_value=-(2.0**127)))
@settings(deadline=None)
def test_bf16_rounds_as_torch_does(value: float) -> None:
    import torch

    from buddy_gen.weights.raw_floats import f32_to_bf16

    one = np.array([value], np.float32)
    expected = torch.from_numpy(one).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    np.testing.assert_array_equal(f32_to_bf16(one), expected)


@pytest.mark.parametrize("form", [F32, F16, BF16, q8(64), Q4_1], ids=str)
@pytest.mark.parametrize(("name", "kind"), [("nan", "NaN"), ("infinite", "infinity")])
def test_what_is_no_number_is_named(source: SafetensorsSource, form: Format, name: str, kind: str) -> None:
    with pytest.raises(BuddyError, match=f"the weight {name} holds {kind}"):
        store_weight(source, name, form, 16)


def test_what_half_precision_can_not_hold_is_named_with_advice(source: SafetensorsSource) -> None:
    with pytest.raises(BuddyError, match=r"the weight large holds 70000.*65504.*as bf16 or f32"):
        store_weight(source, "large", F16, 16)
    assert np.isfinite(store_weight(source, "large", q8(64), 16)).all()
    with pytest.raises(BuddyError, match=r"the weight enormous holds 3.4e\+38.*bf16.*as f32"):
        store_weight(source, "enormous", BF16, 16)


def test_blocks_of_a_source_without_any(source: SafetensorsSource) -> None:
    with pytest.raises(BuddyError, match="stores w as f32"):
        store_weight(source, "w", Q4_0, 16, keep=True)
