"""How fast the Text container encodes and decodes, beside the `tokenizers` and `sentencepiece` libraries, one thread.

    BUDDY_BUILD_DIR=build/release python benchmarks/tokenizer_speed.py tokenizer.json tokenizer.model --text FILE

Without --text, the package's own sources and documents are the text. Each figure is the best of several rounds over the
same paragraphs, each encoded by itself: the reference has a cache of words that is warm from the second round on. The
line below tells how long a megabyte of one letter, of spaces, newlines, é and emoji takes.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import sentencepiece
from tokenizers import Tokenizer as Reference

from buddy_gen import tokenizer

_ROOT = Path(__file__).resolve().parents[1]
_ROUNDS = 5


def _paragraphs(files: Sequence[Path]) -> list[str]:
    return [part for file in files for part in file.read_text("utf-8", "replace").split("\n\n") if part]


def _best(work: Callable[[], object]) -> float:
    """Seconds of the fastest round."""
    seconds = []
    for _ in range(_ROUNDS):
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def _reference(path: Path) -> tuple[str, Callable[[str], list[int]], Callable[[list[int]], str]]:
    if path.suffix == ".json":
        library = Reference.from_file(str(path))
        library.no_truncation()
        library.no_padding()
        return "tokenizers", lambda text: library.encode(text, add_special_tokens=False).ids, library.decode
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(path))
    return "sentencepiece", pieces.encode, pieces.decode


def _compare(path: Path, texts: Sequence[str]) -> None:
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    ours = tokenizer.load(path)
    name, encode, decode = _reference(path)
    ids = [encode(text) for text in texts]
    ours_seconds = _best(lambda: [ours.encode(text, parse_special=True) for text in texts])
    seconds = _best(lambda: [encode(text) for text in texts])
    ours_decoding = _best(lambda: [ours.decode(some, skip_special=True) for some in ids])
    decoding = _best(lambda: [decode(some) for some in ids])
    print(
        f"{path.parent.parent.parent.name}/{path.name}: encode {megabytes / ours_seconds:.1f} MB/s, {name} "
        f"{megabytes / seconds:.1f} MB/s ({seconds / ours_seconds:.1f}x); decode {megabytes / ours_decoding:.0f} MB/s, "
        f"{name} {megabytes / decoding:.0f} MB/s ({decoding / ours_decoding:.1f}x)",
        flush=True,
    )


def _repetitions(path: Path) -> None:
    """Seconds of the processor for a megabyte of one thing, where what is not n log n never ends."""
    ours = tokenizer.load(path)
    seconds = []
    for name, unit in (("A", "A"), ("space", " "), ("newline", "\n"), ("é", "é"), ("🙂", "🙂")):
        text = unit * (1_000_000 // len(unit.encode()))
        started = time.thread_time()
        ours.encode(text)
        seconds.append(f"{name} {time.thread_time() - started:.2f} s")
    print(f"  1 MB of {', '.join(seconds)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenizer", type=Path, nargs="+")
    parser.add_argument("--text", type=Path, nargs="*", help="files of UTF-8 text")
    arguments = parser.parse_args()
    texts = _paragraphs(arguments.text or sorted([*_ROOT.glob("**/*.md"), *_ROOT.glob("python/**/*.py")]))
    for path in arguments.tokenizer:
        _compare(path, texts)
        _repetitions(path)


if __name__ == "__main__":
    main()
