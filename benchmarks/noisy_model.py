"""A GGUF's weights moved off their grid: a fair test for a quantiser.

Weights that were quantised once lie on a grid; a quantiser that finds it loses nothing, which says little about other
weights. This adds uniform noise, seeded, to every quantised tensor, and writes them as f32 with everything else of the
file. The noise moves a weight by at most half a step to either side (a step is the scale of the weight's group), or as
far as --reach says.

    python benchmarks/noisy_model.py smollm2 noisy.gguf --seed 1 --reach 0.5
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf.quants import dequantize

from buddy_gen.errors import BuddyError
from buddy_gen.models.default_model import DEFAULT_MODEL_NAME, fetch_default_model
from buddy_gen.weights.blocks import group_scales
from buddy_gen.weights.gguf_blocks import BLOCK_FORMATS, from_gguf_blocks
from buddy_gen.weights.gguf_file import read_gguf

_SKIPPED = ("general.architecture", "general.file_type", "general.quantization_version")  # the writer has its own
_KINDS = ", ".join(kind.upper() for kind in BLOCK_FORMATS)


def noisy_weights(
    raw: npt.NDArray[np.uint8], kind: gguf.GGMLQuantizationType, seed: int, reach: float
) -> npt.NDArray[np.float32]:
    """The dequantised rows of a quantised tensor with noise of at most `reach` steps; `raw` are the rows' bytes."""
    form = BLOCK_FORMATS.get(kind.name.lower())
    if form is None:
        raise BuddyError(f"the file has {kind.name} tensors; these can be moved off their grid: {_KINDS}")
    values = np.asarray(dequantize(raw, kind), np.float32)
    steps = np.repeat(np.abs(group_scales(from_gguf_blocks(raw, form), form.kind)), form.group, axis=1)
    noise = np.random.default_rng(seed).uniform(-reach, reach, values.shape).astype(np.float32)
    moved: npt.NDArray[np.float32] = values + noise * steps
    return moved


def write_noisy(source: Path, target: Path, seed: int, reach: float = 0.5) -> None:
    """Writes `source` with noise as `target`, one tensor in memory at a time."""
    read_gguf(source)  # refuses damaged files in a sentence; the reader below trusts what it reads
    reader = gguf.GGUFReader(source)
    beside = target.with_name(f".{target.name}.part")
    writer = gguf.GGUFWriter(beside, str(reader.fields["general.architecture"].contents()))
    for field in reader.fields.values():
        if field.name not in _SKIPPED and not field.name.startswith("GGUF."):
            kinds = field.types
            writer.add_key_value(field.name, field.contents(), kinds[0], kinds[-1] if len(kinds) > 1 else None)
    for tensor in reader.tensors:
        shape = [int(size) for size in reversed(tensor.shape)]
        writer.add_tensor_info(tensor.name, shape, np.dtype(np.float32), 4 * int(np.prod(shape)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for place, tensor in enumerate(reader.tensors):
        writer.write_tensor_data(_floats(tensor, seed + place, reach))
    writer.close()
    beside.replace(target)


def _floats(tensor: Any, seed: int, reach: float) -> npt.NDArray[np.float32]:
    kind = gguf.GGMLQuantizationType(tensor.tensor_type)
    if kind in (gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16):
        return np.ascontiguousarray(tensor.data, np.float32)
    return noisy_weights(np.asarray(tensor.data).reshape(int(tensor.shape[-1]), -1), kind, seed, reach)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. Returns 0, or 1 after a sentence."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help=f"a GGUF file of tensors of {_KINDS}, or {DEFAULT_MODEL_NAME}")
    parser.add_argument("output", type=Path, help="the GGUF file to write")
    parser.add_argument("--seed", type=int, default=1, help="of the noise (default: 1)")
    parser.add_argument("--reach", type=float, default=0.5, help="how many steps it moves a weight by (default: 0.5)")
    options = parser.parse_args(arguments)
    if not 0 <= options.reach < 1e6:
        parser.error(f"--reach {options.reach} is no number of steps; give one from 0 on")
    try:
        is_default = options.model == DEFAULT_MODEL_NAME
        source = fetch_default_model(progress=print) if is_default else Path(options.model)
        write_noisy(source, options.output, options.seed, options.reach)
    except (BuddyError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"Wrote {options.output}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
