"""Talks to tests/containers/text-tool.cpp, the Text container behind a pipe.

The program is the one that BUDDY_TEXT_TOOL names, or that of the build in BUDDY_BUILD_DIR; without either it is
compiled on the spot.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import psutil

_ROOT = Path(__file__).resolve().parents[2]
_ROLES = {"system": 0, "user": 1, "assistant": 2}
ABI, MODEL_ID = "a" * 64, "0123456789abcdef" * 4


class TextError(Exception):
    """The sentence of a buddy::Error."""


@cache
def program() -> Path:
    """The path of text-tool."""
    if given := os.environ.get("BUDDY_TEXT_TOOL"):
        return Path(given)
    built = Path(os.environ.get("BUDDY_BUILD_DIR", "/nonexistent"), "bin", "text-tool")
    return built if built.exists() else compile_tool()


@cache
def compile_tool(*flags: str) -> Path:
    """Compiles text-tool with the container's Text sources alone."""
    containers = _ROOT / "cpp" / "containers"
    sources = sorted(path for name in ("Text", "Vocab", "Chat", "Unicode") for path in containers.glob(f"{name}*.cpp"))
    result = Path(tempfile.mkdtemp(prefix="text-tool-")) / "text-tool"
    compiler = os.environ.get("CXX") or shutil.which("g++") or "c++"
    cached = ["ccache"] if shutil.which("ccache") else []
    options = ["-std=c++17", "-O2", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror", "-pthread"]
    sources.append(_ROOT / "tests" / "containers" / "text-tool.cpp")

    def compile_one(source: Path) -> Path:
        to = result.with_name(f"{source.stem}.o")
        subprocess.run([*cached, compiler, *options, *flags, f"-I{containers}", "-c", "-o", to, source], check=True)
        return to

    with ThreadPoolExecutor(max_workers=2) as pool:
        objects = list(pool.map(compile_one, sources))
    subprocess.run([compiler, *options, *flags, "-o", result, *objects], check=True)
    return result


def _string(text: str | bytes) -> bytes:
    encoded = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    return struct.pack("<I", len(encoded)) + encoded


def _ids(ids: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(ids)}i", *ids)


def _date(today: datetime) -> bytes:
    fields = today.timetuple()
    year, weekday = fields.tm_year - 1900, (fields.tm_wday + 1) % 7
    clock = fields.tm_hour, fields.tm_min, fields.tm_sec
    return struct.pack("<8i", year, fields.tm_mon - 1, fields.tm_mday, *clock, weekday, fields.tm_yday - 1)


class TextTool:
    """A running text-tool with a vocabulary."""

    def __init__(self, vocab: Path | None = None, executable: Path | None = None) -> None:
        self._executable = executable or program()
        self.process = subprocess.Popen([self._executable], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        if vocab is not None:
            self.load(vocab)

    def close(self) -> int:
        """Ends the program; its exit code."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        self.process.stdout.close()
        return self.process.wait()

    def __enter__(self) -> TextTool:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.close() == 0

    @property
    def patience(self) -> float:
        """The seconds that a megabyte may take; the sanitizers make it slower."""
        return 10 if b"__asan_init" in self._executable.read_bytes() else 1

    def cpu_seconds(self) -> float:
        """The processor's time that the program has taken so far."""
        times = psutil.Process(self.process.pid).cpu_times()
        return float(times.user + times.system)

    def ask(self, request: bytes) -> bytes:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(struct.pack("<I", len(request)) + request)
        self.process.stdin.flush()
        header = self.process.stdout.read(4)
        assert len(header) == 4, f"text-tool died: {self.process.wait()}"
        answer = self.process.stdout.read(struct.unpack("<I", header)[0])
        if answer[0]:
            raise TextError(answer[1:].decode())
        return answer[1:]

    def load(self, vocab: Path) -> None:
        self.ask(b"l" + os.fsencode(vocab))

    def info(self) -> list[str]:
        """abi, model id, size, bos, eos, added specials, end ids, kind of chat, reason."""
        return self.ask(b"i").decode().split("\n")

    def invalid_at(self, text: bytes) -> int | None:
        answer = self.ask(b"v" + text)
        return None if answer == b"valid" else int(answer)

    def encode(self, text: str | bytes, add_special: bool = False, parse_special: bool = False) -> list[int]:
        encoded = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
        return self._unpack_ids(self.ask(b"e" + bytes([add_special, parse_special]) + encoded))

    def encode_segments(self, segments: Sequence[tuple[str, bool]], add_special: bool = False) -> list[int]:
        packed = b"".join(bytes([parse]) + _string(text) for text, parse in segments)
        return self._unpack_ids(self.ask(b"s" + bytes([add_special]) + packed))

    def decode(self, ids: Sequence[int], skip_special: bool = False) -> str:
        return self.ask(b"d" + bytes([skip_special]) + _ids(ids)).decode()

    def stream(self, ids: Sequence[int], skip_special: bool = False) -> list[str]:
        """What each push gave, and last what finish gave."""
        return [text.decode() for text in self._strings(self.ask(b"t" + bytes([skip_special]) + _ids(ids)))]

    def render(self, messages: Sequence[Any], add_generation_prompt: bool, today: datetime) -> list[tuple[str, bool]]:
        packed = b"".join(struct.pack("<I", _ROLES[m["role"]]) + _string(m["content"]) for m in messages)
        return self._segments(self.ask(b"c" + bytes([add_generation_prompt]) + _date(today) + packed))

    def first_turn(self, system: str | None, user: str, today: datetime) -> list[tuple[str, bool]]:
        packed = bytes([system is not None]) + _date(today) + _string(system or "") + _string(user)
        return self._segments(self.ask(b"f" + packed))

    def next_turn(self, user: str, written: str, today: datetime) -> list[tuple[str, bool]]:
        return self._segments(self.ask(b"n" + _date(today) + _string(written) + _string(user)))

    def keeps_answer(self, answer: str) -> bool:
        return self.ask(b"k" + answer.encode()) == b"1"

    @staticmethod
    def _unpack_ids(answer: bytes) -> list[int]:
        return list(struct.unpack(f"<{len(answer) // 4}i", answer))

    @staticmethod
    def _strings(answer: bytes) -> list[bytes]:
        found = []
        while answer:
            size = struct.unpack_from("<I", answer)[0]
            found.append(answer[4 : 4 + size])
            answer = answer[4 + size :]
        return found

    @staticmethod
    def _segments(answer: bytes) -> list[tuple[str, bool]]:
        found = []
        while answer:
            size = struct.unpack_from("<I", answer, 1)[0]
            found.append((answer[5 : 5 + size].decode(), bool(answer[0])))
            answer = answer[5 + size :]
        return found
