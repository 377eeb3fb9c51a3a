"""``python -m buddy_gen.bench``: the command without the console script."""

from __future__ import annotations

import sys

import typer

from buddy_gen.bench.command import bench_command
from buddy_gen.errors import BuddyError


def main() -> int:
    """Exit code 0 success, 1 a failure with its sentence, 2 wrong usage."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(bench_command)
    try:
        app(prog_name="python -m buddy_gen.bench")
    except BuddyError as error:
        print(f"buddy bench: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
