"""Fails when a pass of passes/Passes.td has no folder tests/passes/<flag>/ with a test in it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    definitions = (ROOT / "passes" / "Passes.td").read_text(encoding="utf-8")
    flags = re.findall(r'^def\s+\w+\s*:\s*(?:Interface)?Pass<\s*"([^"]+)"', definitions, flags=re.MULTILINE)
    if not flags:
        sys.exit("passes/Passes.td defines no pass that this check can read; see .ci/pass_tests.py.")
    untested = [flag for flag in flags if not any((ROOT / "tests" / "passes" / flag).glob("*.mlir"))]
    if untested:
        sys.exit(f"These passes have no test in tests/passes/<flag>/*.mlir: {', '.join(untested)}.")


if __name__ == "__main__":
    main()
