"""What buddy-llama-run generates, prints and reports, with a toy model whose answers are known."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from toy_model import (
    BOS,
    CONTEXT,
    END,
    VOCAB,
    Floats,
    Program,
    follow,
    greedy,
    programs,
    random_table,
    toy_logits,
    write_model,
)
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

TABLE = random_table()
PROMPT = "The capital of France is"
IDS = list(PROMPT.encode())


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return Program(programs() / "run-toy", write_model(tmp_path_factory.mktemp("model"), TABLE))


def following(tmp_path: Path, *texts: str | list[int], delay_ms: float = 0) -> Program:
    """A model that leads along the texts."""
    model = write_model(tmp_path / "model", follow(TABLE.copy(), *texts), delay_ms=delay_ms)
    return Program(programs() / "run-toy", model)


def test_greedy_equals_the_reference_whatever_the_chunks_and_threads(toy: Program) -> None:
    expected = greedy(TABLE, IDS, 40)
    for arguments in (["--ubatch-size", "1"], ["--ubatch-size", "7"], ["-ub", "4096"], ["-t", "1"], ["-t", "1000"]):
        result = toy.run("-p", PROMPT, "-n", "40", "--json", *arguments).json
        assert result["prompt_ids"] == IDS
        assert result["ids"] == expected
        assert result["text"] == bytes(expected).decode()
        assert result["stop"] == "length"
        assert result["prompt_tokens"] == len(IDS) and result["generated_tokens"] == 40


def test_json_has_every_field_on_one_line(toy: Program) -> None:
    run = toy.run("-p", PROMPT, "-n", "5", "-t", "2", "--json")
    assert run.stdout.count(b"\n") == 1 and run.stderr == ""
    assert list(run.json) == [
        "prompt_ids",
        "ids",
        "text",
        "stop",
        "prompt_tokens",
        "generated_tokens",
        "prefilled_tokens",
        "load_seconds",
        "prefill_seconds",
        "decode_seconds",
        "prefill_tokens_per_second",
        "decode_tokens_per_second",
        "peak_rss_bytes",
        "threads",
        "dtype",
        "target",
    ]
    result = run.json
    assert result["threads"] == 2 and result["dtype"] == "f32" and result["target"] == "toy-target"
    assert 0 < result["load_seconds"] < 0.1
    assert 1_000_000 < result["peak_rss_bytes"] < 100_000_000


def test_sources_of_the_prompt(toy: Program, tmp_path: Path) -> None:
    file = tmp_path / "prompt é.txt"
    file.write_bytes(PROMPT.encode())
    runs = [
        toy.run("-p", PROMPT, "-q"),
        toy.run("-f", file, "-q"),
        toy.run("-q", stdin=PROMPT.encode()),
        toy.run("--ids", ",".join(map(str, IDS)), "-q"),
        toy.run(f"--prompt={PROMPT}", "--quiet"),
    ]
    assert {run.stdout for run in runs} == {bytes(greedy(TABLE, IDS, 128)) + b"\n"}
    assert {run.code for run in runs} == {0} and {run.stderr for run in runs} == {""}


def test_prompts_are_raw(toy: Program, tmp_path: Path) -> None:
    """Bytes as they are, BOS only when the model asks for it, special spellings parsed."""
    assert toy.run("-p", " \n x\n", "-n", "0", "--json").json["prompt_ids"] == list(b" \n x\n")
    assert toy.run("-p", "a<|end|>", "-n", "0", "--json").json["prompt_ids"] == [ord("a"), END]
    with_bos = Program(toy.path, write_model(tmp_path, TABLE, add_bos=True))
    assert with_bos.run("-p", "a", "-n", "0", "--json").json["prompt_ids"] == [BOS, ord("a")]
    assert with_bos.run("--ids", "97", "-n", "0", "--json").json["prompt_ids"] == [ord("a")]


def test_end_token(tmp_path: Path) -> None:
    model = following(tmp_path, [*b"Yes.", END, ord("x")])
    result = model.run("-p", "Y", "--json").json
    assert result["text"] == "es." and result["ids"] == list(b"es.") and result["stop"] == "eos"
    result = model.run("-p", "Y", "--json", "--ignore-eos", "-n", "5").json
    assert result["ids"] == [*b"es.", END, ord("x")] and result["text"] == "es.x" and result["stop"] == "length"


@pytest.mark.parametrize(
    ("stops", "text", "stopped"),
    [
        (["cd"], "b", True),
        (["bc"], "", True),
        (["ef", "cde"], "b", True),  # ends first
        (["gh", "xyz"], "bcdef", True),
        (["cdx", "dz", "efgi"], "bcdefgh", False),  # begin, and never end
        (["é"], "bcdefgh", False),
    ],
)
def test_stop_strings_that_straddle_tokens(tmp_path: Path, stops: list[str], text: str, stopped: bool) -> None:
    """A4: each token is one byte."""
    model = following(tmp_path, [*b"abcdefgh", END])
    arguments = [part for stop in stops for part in ("--stop", stop)]
    result = model.run("-p", "a", "--json", *arguments).json
    assert result["text"] == text
    assert result["stop"] == ("stop-string" if stopped else "eos")
    for more in ([], ["--no-stream"]):
        assert model.run("-p", "a", *arguments, *more).text == text + "\n"


def test_stop_string_held_back_at_the_length_limit(tmp_path: Path) -> None:
    model = following(tmp_path, "abcdefgh")
    result = model.run("-p", "a", "--json", "-n", "3", "--stop", "cdefg").json
    assert result["text"] == "bcd" and result["stop"] == "length"


def test_streams_whole_characters_only(tmp_path: Path) -> None:
    """Each write to standard output is valid UTF-8, though a character takes several tokens."""
    model = following(tmp_path, [*"<é中😀>".encode(), END], delay_ms=5)
    with subprocess.Popen(model.command("-p", "<", "-q"), stdout=subprocess.PIPE) as process:
        assert process.stdout
        parts = []
        while part := os.read(process.stdout.fileno(), 1000):
            parts.append(part.decode())  # fails for half a character
    assert "".join(parts) == "é中😀>\n"
    assert len(parts) >= 4
    cut = model.run("-p", "<", "-n", "4", "--json").json  # the last token begins a character
    assert cut["text"] == "é\N{REPLACEMENT CHARACTER}"


def test_context_sizes(toy: Program, tmp_path: Path) -> None:
    """A1: one token too many is an error, exactly the context works and generates nothing."""
    full = toy.run("--ids", ",".join(["97"] * 8), "-c", "8", "--json").json
    assert full["ids"] == [] and full["stop"] == "context" and full["text"] == ""
    toy.run("--ids", ",".join(["97"] * 9), "-c", "8").fails(1, "9 tokens", "holds 8", "-c")
    filled = toy.run("--ids", "97,98,99", "-c", "8", "--json", "-n", "-1").json
    assert filled["ids"] == greedy(TABLE, [97, 98, 99], 5) and filled["stop"] == "context"
    assert toy.run("--ids", "97", "-c", "0", "-n", "-1", "--json").json["generated_tokens"] == CONTEXT - 1
    assert toy.run("--ids", "97", "-n", "0", "--json").json["stop"] == "length"


def test_dump_logits(toy: Program, tmp_path: Path) -> None:
    file = tmp_path / "logits.npy"

    def rows(*arguments: str) -> Floats:
        assert toy.run("--ids", "97,98,99,100,101", "--dump-logits", file, *arguments).code == 0
        logits: Floats = np.load(file)
        return logits

    prompt = [97, 98, 99, 100, 101]
    generated = greedy(TABLE, prompt, 3)
    every = np.stack([toy_logits(TABLE, (prompt + generated)[: end + 1]) for end in range(7)])
    one_by_one = rows("-n", "3", "--ubatch-size", "1")
    assert one_by_one.dtype == np.float32 and one_by_one.shape == (7, VOCAB)
    np.testing.assert_array_equal(one_by_one, every)
    np.testing.assert_array_equal(rows("-n", "3"), every[4:])
    np.testing.assert_array_equal(rows("-n", "0", "--ubatch-size", "2"), every[[1, 3, 4]])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["logits.npy"]


def test_dumped_logits_go_through_a_link(toy: Program, tmp_path: Path) -> None:
    """The link stays one, whether there is a file already or not, and that file's permissions stay."""
    folder = tmp_path / "links"
    folder.mkdir()
    (tmp_path / "old.npy").write_bytes(b"old")
    (tmp_path / "old.npy").chmod(0o640)
    for name in ("old", "new"):
        link = folder / name
        link.symlink_to(f"../{name}.npy")
        assert toy.run("-p", "ab", "-n", "2", "-q", "--dump-logits", link).code == 0
        assert link.is_symlink() and np.load(tmp_path / f"{name}.npy").shape == (2, VOCAB)
    assert (tmp_path / "old.npy").stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["links", "new", "new.npy", "old", "old.npy"]


def test_a_second_interrupt_leaves_no_logits(tmp_path: Path) -> None:
    slow = Program(programs() / "run-toy", write_model(tmp_path / "model", TABLE, delay_ms=300))
    folder = tmp_path / "logits"
    folder.mkdir()
    command = slow.command("-p", "a", "-n", "-1", "--ignore-eos", "--dump-logits", folder / "logits.npy")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.read(1)
        assert len(list(folder.iterdir())) == 1
        process.send_signal(signal.SIGINT)
        time.sleep(0.05)  # it is in an evaluation
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=10)
    assert process.returncode == 130 and list(folder.iterdir()) == []


def test_without_a_vocabulary(tmp_path: Path) -> None:
    table = follow(TABLE.copy(), [97, 98, END])
    for name in ("toy", "ids"):
        model = Program(programs() / f"run-{name}", write_model(tmp_path / name, table, vocab=False))
        result = model.run("--ids", "97", "--json", "-n", "4").json
        assert result["text"] is None
        # `ids` has its end token in the config; the toy's stands in the vocabulary that is missing here.
        assert (result["ids"], result["stop"]) == (([98], "eos") if name == "ids" else (result["ids"], "length"))
        assert model.run("--ids", "97", "-n", "1").text == "98 \n"
        model.run("-p", "a").fails(1, "vocabulary" if name == "toy" else "without a tokenizer", "--ids")
        model.run("--ids", "97", "--stop", "x").fails(1, "--ids")
        model.run("-cnv", stdin=b"hi\n").fails(1, "--ids")


class SplitMix64:
    """Steele, Lea, Flood: Fast splittable pseudorandom number generators."""

    def __init__(self, seed: int) -> None:
        self.state = seed

    def uniform(self) -> float:
        mask = 2**64 - 1
        self.state = (self.state + 0x9E3779B97F4A7C15) & mask
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return float((z ^ (z >> 31)) >> 11) * 2.0**-53


@pytest.mark.parametrize(
    "settings",
    [
        {"temp": 1.0},
        {"temp": 0.7, "top_k": 5},
        {"temp": 3.5, "top_p": 0.8},
        {"temp": 4.0, "min_p": 0.3},
        {"temp": 2.5, "top_k": 12, "top_p": 0.9, "min_p": 0.02, "repeat_penalty": 1.3},
        {"temp": 1.0, "top_p": 0.0},
        {"repeat_penalty": 1.5},
        {"temp": 1e-30},
    ],
)
def test_sampling_equals_transformers(toy: Program, settings: dict[str, float]) -> None:
    processors = LogitsProcessorList()
    if "repeat_penalty" in settings:
        processors.append(RepetitionPenaltyLogitsProcessor(settings["repeat_penalty"]))
    if settings.get("temp", 0) > 1e-9:
        processors.append(TemperatureLogitsWarper(settings["temp"]))
    if "top_k" in settings:
        processors.append(TopKLogitsWarper(int(settings["top_k"])))
    if "top_p" in settings:
        processors.append(TopPLogitsWarper(settings["top_p"]))
    if "min_p" in settings:
        processors.append(MinPLogitsWarper(settings["min_p"]))
    ids, random = [97, 98], SplitMix64(42)
    for _ in range(100):
        logits = torch.from_numpy(toy_logits(TABLE, ids))[None]
        scores = processors(torch.LongTensor([ids]), torch.FloatTensor(logits))[0].double()
        if settings.get("temp", 0) > 1e-9:
            sums = torch.softmax(scores, 0).cumsum(0)
            ids.append(int(torch.searchsorted(sums, random.uniform(), right=True)))
        else:
            ids.append(int(scores.argmax()))
    flags = [part for key, value in settings.items() for part in (f"--{key.replace('_', '-')}", f"{value:g}")]
    arguments = ["--ids", "97,98", "-n", "100", "--ignore-eos", "--seed", "42", *flags]
    assert toy.run(*arguments, "--json").json["ids"] == ids[2:]


def test_seeds(toy: Program) -> None:
    def ids(*arguments: str) -> list[int]:
        result: list[int] = toy.run("-p", "a", "--temp", "5", "-n", "30", "--json", *arguments).json["ids"]
        return result

    assert ids("--seed", "18446744073709551615") == ids("--seed", "18446744073709551615")
    assert ids("--seed", "1") != ids("--seed", "2")
    assert ids() != ids()
    assert "seed: 7\n" in toy.run("-p", "a", "--temp", "1", "--seed", "7").stderr


def test_statistics_go_to_standard_error(toy: Program) -> None:
    run = toy.run("-p", "a", "-n", "4")
    assert "tokens/s" in run.stderr and "load" in run.stderr and run.text.count("\n") == 1
    assert toy.run("-p", "a", "-n", "4", "-q").stderr == ""


def test_other_locales(toy: Program, tmp_path: Path) -> None:
    """R8: decimal commas and a dotless i."""
    expected = toy.run("-p", PROMPT, "--temp", "0.5", "--seed", "1", "--json").json
    for name in ("de_DE.UTF-8", "tr_TR.UTF-8", "nowhere"):
        locale = {"LC_ALL": name, "LANG": name}
        result = toy.run("-p", PROMPT, "--temp", "0.5", "--seed", "1", "--json", env=locale).json
        assert result["ids"] == expected["ids"] and result["text"] == expected["text"]


def test_small_stack(toy: Program) -> None:
    """R4."""
    command = ["sh", "-c", 'ulimit -s 256 && exec "$@"', "sh", *toy.command("-p", PROMPT, "-q")]
    assert subprocess.run(command, check=True, capture_output=True).stdout == bytes(greedy(TABLE, IDS, 128)) + b"\n"


def test_threads_follow_the_affinity(toy: Program) -> None:
    """R2."""
    cpu = min(os.sched_getaffinity(0))
    command = ["taskset", "-c", str(cpu), *toy.command("-p", "a", "--json")]
    environment = os.environ | {"OMP_NUM_THREADS": "64"}
    done = subprocess.run(command, check=True, capture_output=True, env=environment)
    assert json.loads(done.stdout)["threads"] == 1
    assert toy.run("-p", "a", "-t", "0", "--json").json["threads"] <= len(os.sched_getaffinity(0))


def test_cache_memory_is_touched_only_as_it_fills(toy: Program) -> None:
    def peak(*arguments: str) -> int:
        return int(toy.run("--ids", "97", "-n", "4", "--json", *arguments).json["peak_rss_bytes"])

    assert abs(peak("-c", str(CONTEXT)) - peak("-c", "8")) < 500_000


def test_interrupt_stops_the_answer_and_prints_statistics(tmp_path: Path) -> None:
    """A5."""
    model = following(tmp_path, delay_ms=10)
    for arguments in ([], ["--json"]):
        with subprocess.Popen(
            model.command("-p", "a", "-n", "200", *arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            time.sleep(0.3)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=10)
        assert process.returncode == 0
        if arguments:
            result = json.loads(out)
            assert result["stop"] == "interrupt" and 1 < len(result["ids"]) < 200
        else:
            assert b"tokens/s" in err and b"stop: interrupt" in err and out.endswith(b"\n")


def test_two_interrupts_end_the_process(tmp_path: Path) -> None:
    model = following(tmp_path, delay_ms=2000)
    with subprocess.Popen(model.command("-p", "a"), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        started = time.monotonic()
        process.communicate(timeout=10)
        assert time.monotonic() - started < 1 and process.returncode == 130


def test_closed_standard_output_is_a_quiet_exit(tmp_path: Path) -> None:
    """A5."""
    model = following(tmp_path, delay_ms=5)
    reader, writer = os.pipe()
    with subprocess.Popen(model.command("-p", "a", "-n", "100"), stdout=writer, stderr=subprocess.PIPE) as process:
        os.close(writer)
        os.read(reader, 1)
        os.close(reader)
        _, err = process.communicate(timeout=10)
    assert process.returncode == 0 and err == b""


def test_verify_version_and_help(toy: Program) -> None:
    """--verify passes for a good file, and --version and --help say what the program is."""
    assert toy.run("-p", "a", "-n", "1", "--verify").code == 0
    version = toy.run("--version")
    assert version.code == 0 and 'a "toy" \\ model' in version.text and "ab" * 32 in version.text
    assert "--repeat-penalty" in toy.run("--help").text
