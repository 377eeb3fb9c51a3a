"""``python -m buddy_gen.generate``: what CMake runs at configure time (see docs/architecture.md)."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from buddy_gen.choices import CALIBRATION_TOKENS, DTYPES, GROUPS, KV_DTYPES
from buddy_gen.errors import BuddyError


def _list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def parser() -> argparse.ArgumentParser:
    """The generator's options."""
    options = argparse.ArgumentParser(prog="buddy_gen.generate", description=__doc__, allow_abbrev=False)
    options.add_argument("--name", required=True, help="name of the model in the build; prefix of every artefact")
    options.add_argument("--model", required=True, help="a Hugging Face folder, a GGUF file, or 'smollm2'")
    options.add_argument("--output-dir", required=True, help="where MLIR, header and CMake fragment go")
    options.add_argument("--runtime-dir", required=True, help="where weights and vocabulary go")
    options.add_argument("--target", default="native", help="machine to compile for (default: this one)")
    options.add_argument("--dtype", default="f32", choices=DTYPES, help="type of weights and activations")
    options.add_argument("--group", choices=GROUPS, help="int8 weights that share a scale (default: 64)")
    options.add_argument("--kv-dtype", choices=KV_DTYPES, help="type of the KV caches (default: as the dtype asks)")
    options.add_argument("--calibrate", metavar="TEXT", help="a text file that weights of 4 bits are rounded on")
    options.add_argument("--calibration-tokens", type=int, metavar="N", help=f"of it (default: {CALIBRATION_TOKENS})")
    options.add_argument("--dialect-priority", type=_list, default=("linalg", "tosa"), metavar="DIALECT,...")
    options.add_argument("--entry-points", type=_list, default=("prefill", "decode"), metavar="ENTRY,...")
    options.add_argument("--quiet", action="store_true", help="no progress")
    options.add_argument("--json", action="store_true", help="a report as JSON on standard output")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the generator.

    Returns:
        0, or 1 after one sentence on standard error.
    """
    options = parser().parse_args(arguments)
    try:
        from buddy_gen.generate.run import generate

        report = generate(options)
    except BuddyError as error:
        print(f"buddy: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("buddy: interrupted", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(report, indent=1, sort_keys=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
