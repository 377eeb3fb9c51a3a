"""The same weights for the peers: ``python -m buddy_gen.bench.reference MODEL --folder DIR`` or ``--gguf FILE``.

MODEL is a Hugging Face folder where a GGUF is to be written, and any model otherwise.

A process of its own, so that the benchmark, whose children inherit its peak memory, stays small.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from buddy_gen.errors import BuddyError

__all__ = ["main", "write_folder", "write_gguf"]


def write_folder(model: str, folder: Path) -> None:
    """Writes a model as a Hugging Face folder in float32.

    Raises:
        BuddyError: It is no Llama model, or has rotary frequencies that no config.json expresses.
    """
    import torch
    from safetensors.torch import save_file

    from buddy_gen.models import open_model

    description = open_model(model)
    if description.inv_freq_override is not None:
        raise BuddyError(f"{model} has rotary frequencies of its own, which a config.json cannot express.")
    tensors = {name: torch.from_numpy(description.weights.read(name)) for name in description.weights.names()}
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        beside = Path(scratch) / folder.name
        beside.mkdir()
        save_file(tensors, beside / "model.safetensors", metadata={"format": "pt"})
        content = {**json.loads(description.config.to_json_string(use_diff=True)), "dtype": "float32"}
        content |= {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
        (beside / "config.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        beside.rename(folder)


def write_gguf(folder: Path, path: Path) -> None:
    """Writes a Hugging Face folder as a float32 GGUF without a tokenizer, which llama-bench does not need."""
    from buddy_gen.models.tiny import write_tiny_gguf  # writes a model of any size

    write_tiny_gguf(path, folder, "f32", extra=lambda writer: writer.add_tokenizer_model("none"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0, or 1 after one sentence on standard error."""
    parser = argparse.ArgumentParser(prog="python -m buddy_gen.bench.reference", description=__doc__)
    parser.add_argument("model")
    target = parser.add_mutually_exclusive_group(required=True)
    target.add_argument("--folder", type=Path)
    target.add_argument("--gguf", type=Path)
    options = parser.parse_args(arguments)
    try:
        if options.folder is not None:
            write_folder(options.model, options.folder)
        else:
            write_gguf(Path(options.model), options.gguf)
    except (BuddyError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
