"""Makes, or checks, the Python environment of a build: `environment.py create|check --pyproject FILE ...`.

Runs under the base interpreter, before anything is installed, so it uses the standard library alone. The versions
come from pyproject.toml and nowhere else.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import re
import shutil
import subprocess
import sys
import time
import venv
from pathlib import Path

STAMP = "buddy-requirements.txt"
# What `buddy build` needs on a user's machine; whoever runs this file has CMake and Ninja already.
ONLY_INSTALLED = {"cmake", "ninja"}
# What pip prints when a wheel has been fetched, or found in its cache or a local folder.
ARRIVED = re.compile(r"\s*(?:Downloading|Using cached|Processing) (?:\S*/)?(\S+\.(?:whl|tar\.gz)(?: \([\d.]+ .B\))?)")


def package_name(requirement: str) -> str:
    return re.split(r"[\s<>=!~;\[]", requirement, maxsplit=1)[0].lower()


def requirements(pyproject: Path, toolchain: str, extras: list[str]) -> list[str]:
    """The pinned requirements of a build folder, without repetition."""
    import tomllib  # after main() has looked at the version of Python

    settings = tomllib.loads(pyproject.read_text(encoding="utf-8"))
    wanted = list(settings["project"]["dependencies"])
    if toolchain == "wheels":
        wanted += [r for r in settings["build-system"]["requires"] if package_name(r).startswith("xtc-")]
    for extra in extras:
        wanted += settings["project"]["optional-dependencies"][extra]
    # The wheels with LLVM's tools stay with either toolchain: MLIR's Python bindings load their shared libraries.
    return [r for r in dict.fromkeys(wanted) if package_name(r) not in ONLY_INSTALLED]


def check(wanted: list[str]) -> None:
    """Exits with a sentence when this interpreter lacks a package; other versions than the pinned ones are told."""
    missing = []
    for requirement in wanted:
        try:
            found = importlib.metadata.version(package_name(requirement))
        except importlib.metadata.PackageNotFoundError:
            missing.append(requirement)
            continue
        pinned = requirement.partition("==")[2]
        if pinned and found.partition("+")[0] != pinned:
            print(f"-- {package_name(requirement)} {found} in {sys.prefix} is used; buddy-gen is tested with {pinned}")
    if missing:
        sys.exit(
            f"{sys.executable} lacks {', '.join(missing)}; install them there, "
            "or leave out -DPython3_EXECUTABLE to have an environment made in the build folder."
        )


def create(folder: Path, wanted: list[str]) -> None:
    """Makes the virtual environment; one that an interrupted run left half-made is made anew."""
    stamp = folder / STAMP
    text = "\n".join(wanted) + "\n"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == text:
        return
    if not stamp.exists():
        print(f"-- Creating the virtual environment {folder}")
        if folder.exists():
            shutil.rmtree(folder)
        try:
            venv.create(folder, with_pip=True, symlinks=True)
        except (OSError, subprocess.CalledProcessError) as error:
            sys.exit(f"{sys.executable} cannot make a virtual environment ({error}); Debian: apt install python3-venv.")
    stamp.unlink(missing_ok=True)
    install(folder, wanted)
    beside = stamp.with_suffix(".tmp")
    beside.write_text(text, encoding="utf-8")
    beside.replace(stamp)


def install(folder: Path, wanted: list[str]) -> None:
    """Runs pip, showing each package as it arrives; the whole output is kept in pip.log."""
    print(f"-- Installing {len(wanted)} pinned packages and what they need (about 0.7 GB to download, 3 GB on disk)")
    start = time.monotonic()
    log = folder / "pip.log"
    # Byte code is compiled as modules are imported: compiling all of it now takes longer than installing.
    command = [str(folder / "bin" / "python"), "-m", "pip", "install", "--no-compile", "--no-input", *wanted]
    pip = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    assert pip.stdout is not None
    arrived = 0
    errors: list[str] = []
    with log.open("w", encoding="utf-8") as file:
        for line in pip.stdout:
            file.write(line)
            if match := ARRIVED.match(line):
                arrived += 1
                print(f"--   [{arrived}] {match[1]}")
            elif line.startswith("Installing collected packages:"):
                print(f"--   unpacking {line.count(',') + 1} packages ({time.monotonic() - start:.0f} s so far)")
            elif line.startswith("ERROR:"):
                errors.append(line.strip())
    if pip.wait() != 0:
        reason = errors[0] if errors else f"pip ended with code {pip.returncode}"
        sys.exit(f"Installing the pinned packages failed ({reason}); see {log}, check the network, and run again.")
    print(f"-- Installed in {time.monotonic() - start:.0f} s")


def main() -> None:
    if sys.version_info < (3, 11):  # noqa: UP036 - find_package takes an older one that is given by path
        found = ".".join(map(str, sys.version_info[:2]))
        sys.exit(f"{sys.executable} is Python {found}; name an interpreter of 3.11 or newer with -DPython3_EXECUTABLE.")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["create", "check"])
    parser.add_argument("--pyproject", type=Path, required=True)
    parser.add_argument("--toolchain", default="wheels")
    parser.add_argument("--extras", default="", help="comma-separated extras of the project")
    parser.add_argument("--venv", type=Path)
    arguments = parser.parse_args()
    extras = [extra for extra in arguments.extras.split(",") if extra]
    wanted = requirements(arguments.pyproject, arguments.toolchain, extras)
    if arguments.command == "create":
        create(arguments.venv, wanted)
    else:
        check(wanted)


if __name__ == "__main__":
    main()
