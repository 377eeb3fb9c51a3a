"""Which buddy-gen this is: its version and, where that is known, the commit.

An installation has them in version.txt, which the build writes with this file; a clone asks pyproject.toml and git.
"""

from __future__ import annotations

import shutil
import subprocess
import tomllib
from functools import cache
from pathlib import Path

__all__ = ["release", "version"]

_PACKAGE = Path(__file__).resolve().parent


@cache
def version() -> str:
    """Such as 0.1.0+g2f5384837, with .dirty behind it where the clone has changes of its own."""
    installed = _PACKAGE / "version.txt"
    if installed.is_file():
        return installed.read_text(encoding="utf-8").strip()
    clone = _PACKAGE.parents[1]
    number = _project_version(clone / "pyproject.toml")
    commit = _commit(clone)
    return f"{number}+g{commit}" if commit else number


def release() -> str:
    """The version alone."""
    return version().partition("+")[0]


def _project_version(pyproject: Path) -> str:
    try:
        settings = tomllib.loads(pyproject.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return "0"
    return str(settings.get("project", {}).get("version", "0"))


def _commit(clone: Path) -> str:
    """Empty where there is no repository, or no git."""
    git = shutil.which("git")
    if git is None or not (clone / ".git").exists():
        return ""
    command = [git, "-C", str(clone), "describe", "--always", "--dirty", "--abbrev=9", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip().replace("-", ".") if done.returncode == 0 else ""


if __name__ == "__main__":
    print(version())
