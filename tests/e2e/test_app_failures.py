"""Wrong usage and bad files: buddy-llama-run answers with one sentence and a code, never with a crash."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from toy_model import ABI, OTHER_ABI, Program, programs, random_table, write_model

pytestmark = pytest.mark.slow

TABLE = random_table()


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return Program(programs() / "run-toy", write_model(tmp_path_factory.mktemp("model"), TABLE))


@pytest.fixture
def copy(toy: Program, tmp_path: Path) -> Program:
    """The toy with files of its own, to be damaged."""
    return Program(toy.path, Path(shutil.copytree(toy.model, tmp_path / "model")))


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--nonsense"], ["--nonsense", "unknown", "--help"]),
        (["-x"], ["-x"]),
        (["hello"], ["'hello'", "-p"]),
        ([""], ["''"]),
        (["-p"], ["-p", "needs a value"]),
        (["--json=yes"], ["takes no value"]),
        (["-n", "-2"], ["-n", "-2"]),
        (["-n", "many"], ["-n", "'many'"]),
        (["-n", ""], ["-n"]),
        (["-n", "9223372036854775808"], ["-n", "up to 9223372036854775807"]),
        (["-t", "-1"], ["-t"]),
        (["-t", "1025"], ["-t", "1024"]),
        (["-c", "257"], ["-c", "256"]),
        (["-c", "-1"], ["-c"]),
        (["--ubatch-size", "0"], ["--ubatch-size"]),
        (["--temp", "nan"], ["--temp", "nan"]),
        (["--temp", "-1"], ["--temp"]),
        (["--temp", "inf"], ["--temp"]),
        (["--temp", "3.5e38"], ["--temp", "3.4028234e38"]),
        (["--temp", "0,5"], ["--temp"]),
        (["--temp", "0.5x"], ["--temp"]),
        (["--top-k", "-1"], ["--top-k"]),
        (["--top-k", "9223372036854775808"], ["--top-k", "up to 9223372036854775807"]),
        (["--top-p", "1.5"], ["--top-p"]),
        (["--min-p", "-0.1"], ["--min-p"]),
        (["--typical", "1.5"], ["--typical"]),
        (["--presence-penalty", "nan"], ["--presence-penalty"]),
        (["--frequency-penalty", ""], ["--frequency-penalty"]),
        (["--repeat-penalty", "0"], ["--repeat-penalty"]),
        (["--repeat-penalty", "1e-7"], ["--repeat-penalty", "0.000001"]),
        (["--seed", "-1"], ["--seed"]),
        (["--seed", "18446744073709551616"], ["--seed", "18446744073709551615"]),
        (["--stop", ""], ["--stop"]),
        (["--ids", "1,,2"], ["--ids"]),
        (["--ids", "1,2,"], ["--ids"]),
        (["--ids", "264"], ["--ids", "263"]),
        (["--ids", "-1"], ["--ids"]),
        (["-p", "a", "-f", "b"], ["only one"]),
        (["-p", "a", "-sys", "b"], ["-sys", "-cnv"]),
        (["-cnv", "--ids", "1"], ["--ids"]),
        (["-cnv", "--dump-logits", "x"], ["--dump-logits"]),
        (["-p", "a", "--dump-logits", ""], ["--dump-logits"]),
    ],
)
def test_wrong_usage(toy: Program, arguments: list[str], parts: list[str]) -> None:
    toy.run(*arguments).fails(2, *parts)


def test_values_at_the_border_have_a_meaning(toy: Program) -> None:
    """A6."""
    common = ["-p", "a", "--json", "--ignore-eos"]
    assert toy.run(*common, "-n", "0").json["ids"] == []
    assert toy.run(*common, "-n", "-1").json["stop"] == "context"
    assert toy.run(*common, "-n", "1", "-t", "0").json["threads"] >= 1
    assert toy.run(*common, "-n", "1", "-t", "1000").json["threads"] == 1000
    assert len(toy.run(*common, "-n", "-1", "-c", "0").json["ids"]) == 255
    toy.run(*common, "--temp", "nan").fails(2, "--temp", "'nan'")
    toy.run(*common, "--no-such-flag").fails(2, "'--no-such-flag' is unknown", "--help")


def test_exit_codes_are_documented(toy: Program) -> None:
    """0, 1, 2 and 130; each has its tests, 130 in test_app_generation.py."""
    assert toy.run("-p", "a", "-n", "1").code == 0
    assert toy.run("-p", "a", "-m", "nowhere").code == 1
    assert toy.run("--nonsense").code == 2
    text = toy.run("--help").text
    codes = text[text.index("Exit code") :]
    assert all(f"{code} " in codes for code in (0, 1, 2, 130))
    assert "Examples:" in text and max(map(len, text.splitlines())) <= 120


def test_texts_that_are_no_utf8(toy: Program, tmp_path: Path) -> None:
    toy.run("-p", b"\xff").fails(1, "UTF-8")
    toy.run(stdin=b"\xe4\xb8").fails(1, "UTF-8")
    (tmp_path / "file").write_bytes(b"\xed\xa0\x80")
    toy.run("-f", tmp_path / "file").fails(1, "UTF-8")
    toy.run("-p", "a", "--stop", b"\xc3").fails(2, "--stop", "UTF-8")


def test_empty_prompts(toy: Program, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    for arguments in (["-p", ""], [], ["-f", tmp_path / "empty"], ["--ids", ""]):
        toy.run(*arguments).fails(1, "the prompt is empty")


def test_prompt_files_that_can_not_be_read(toy: Program, tmp_path: Path) -> None:
    toy.run("-f", tmp_path / "nothing").fails(1, "nothing", "No such file")
    toy.run("-f", tmp_path).fails(1, "directory")


def test_missing_files(toy: Program, tmp_path: Path) -> None:
    toy.run("-m", tmp_path / "nowhere", "-p", "a").fails(1, "toy.weights.safetensors", "No such file")
    done = subprocess.run([toy.path, "-p", "a"], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and str(toy.path.parent) in done.stderr  # its own folder


def test_files_beside_the_program_are_found(toy: Program, tmp_path: Path) -> None:
    """R5: from anywhere, and through a link."""
    folder = tmp_path / "a b" / "é"
    shutil.copytree(toy.model, folder)
    shutil.copy(toy.path, folder / "run")
    (tmp_path / "link").symlink_to(folder / "run")
    for program in (folder / "run", tmp_path / "link"):
        subprocess.run([program, "-p", "a"], cwd="/", check=True, capture_output=True)


def test_weights_that_are_cut(copy: Program) -> None:
    """F3: at every kilobyte and in each of the first bytes."""
    file = copy.model / "toy.weights.safetensors"
    content = file.read_bytes()
    sizes = [*range(12), *range(16, 1200, 97), *range(1024, len(content), 30 * 1024), len(content) - 1]
    for size in sizes:
        file.write_bytes(content[:size])
        copy.run("-p", "a").fails(1, "toy.weights.safetensors", "damaged" if size != 8 else "")
    file.write_bytes(content + b"\0")
    copy.run("-p", "a").fails(1, "too long")


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"<!DOCTYPE html><html><body>404</body></html>", "HTML"),
        (b"\n <html></html>", "HTML"),
        (b"GGUF\3\0\0\0" + bytes(64), "GGUF"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00", "LFS"),
        (bytes(100), "not a weights file"),
        (b"\xff" * 100, "not a weights file"),
    ],
)
def test_foreign_weights(copy: Program, content: bytes, part: str) -> None:
    (copy.model / "toy.weights.safetensors").write_bytes(content)
    copy.run("-p", "a").fails(1, "toy.weights.safetensors", part)


def header_of(content: bytes) -> tuple[dict[str, object], bytes]:
    size = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + size]), content[8 + size :]


def with_header(header: object, data: bytes) -> bytes:
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % 64)
    return len(text).to_bytes(8, "little") + text + data


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"format_version": "2"}, ["format version 2", "reads version 1", "0.1.0"]),
        ({"format": "pt"}, ["another program"]),
        ({"format": None}, ["another program"]),
        ({"abi": OTHER_ABI}, [ABI, OTHER_ABI, "0.1.0"]),  # F8
        ({"abi": None}, ["'abi'"]),
        ({"model_id": None}, ["'model_id'"]),
        ({"content_sha256": None}, ["'content_sha256'"]),
        ({"exporter": None}, ["'exporter'"]),
        ({"model_id": "34" * 32}, ["different models", "34" * 32]),
    ],
)
def test_weights_metadata(copy: Program, change: dict[str, str | None], parts: list[str]) -> None:
    file = copy.model / "toy.weights.safetensors"
    header, data = header_of(file.read_bytes())
    metadata = {**header["__metadata__"], **change}  # type: ignore[dict-item]
    header["__metadata__"] = {key: value for key, value in metadata.items() if value is not None}
    file.write_bytes(with_header(header, data))
    copy.run("-p", "a").fails(1, *parts)


def test_damaged_content_is_found_by_verify(copy: Program) -> None:
    file = copy.model / "toy.weights.safetensors"
    content = bytearray(file.read_bytes())
    content[-100_000] ^= 1
    file.write_bytes(content)
    assert copy.run("-p", "a", "-q").code == 0
    copy.run("-p", "a", "--verify").fails(1, "SHA-256", "damaged")


def test_logits_that_are_no_numbers(tmp_path: Path) -> None:
    table = TABLE.copy()
    for row, value in ((97, np.nan), (98, np.inf), (99, -np.inf)):
        table[row, 5 if row < 99 else slice(None)] = value
    toy = Program(programs() / "run-toy", write_model(tmp_path, table))
    for prompt in "abc":
        toy.run("-p", prompt).fails(1, "--verify")


def test_vocabularies(copy: Program, toy: Program, tmp_path: Path) -> None:
    vocab, weights = copy.model / "toy.vocab", copy.model / "toy.weights.safetensors"
    content = vocab.read_bytes()
    vocab.write_bytes(content[:-1])
    copy.run("-p", "a").fails(1, "toy.vocab")
    vocab.write_bytes(weights.read_bytes())  # F9: one in the place of the other
    copy.run("-p", "a").fails(1, "toy.vocab")
    vocab.write_bytes(content)
    weights.write_bytes(content)
    copy.run("-p", "a").fails(1, "toy.weights.safetensors", "vocabulary")
    other = write_model(tmp_path / "other", TABLE, vocab_model_id="56" * 32)
    Program(toy.path, other).run("-p", "a").fails(1, "different models", "56" * 32)


def test_cpu_that_lacks_features(toy: Program) -> None:
    """R1: no CPU of today has what this program asks for."""
    Program(programs() / "run-other", toy.model).run("-p", "a").fails(1, "lacks", "xop", "toy-target")
    assert Program(programs() / "run-other", toy.model).run("--version").code == 0


def test_output_that_can_not_be_written(toy: Program, tmp_path: Path) -> None:
    toy.run("-p", "a", "--json", "--dump-logits", tmp_path / "no" / "x.npy").fails(1, "x.npy", "No such file")
    toy.run("-p", "a", "--json", "--dump-logits", "/dev/full").fails(1, "/dev/full", "No space")
    toy.run("-p", "a", "--json", "--dump-logits", tmp_path).fails(1, str(tmp_path))
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(toy.command("-p", "a"), stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1 and "No space" in done.stderr and done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_standard_streams_that_are_closed(toy: Program, tmp_path: Path) -> None:
    """No file that is opened takes their place."""
    logits = tmp_path / "logits.npy"
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *toy.command("-p", "ab", "-n", "2", "--dump-logits", logits)],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "standard output" in done.stderr
    assert not logits.exists() and list(tmp_path.iterdir()) == []
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" <&- 2>&-', "sh", *toy.command("-p", "ab", "-n", "2", "--dump-logits", logits)],
        stdout=subprocess.PIPE,
        check=False,
    )
    assert done.returncode == 0 and len(done.stdout.rstrip()) == 2
    assert np.load(logits).shape[1] == TABLE.shape[1]
