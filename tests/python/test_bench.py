"""The benchmark: its arithmetic, parsing, order and reports, and the program machine-limits."""

from __future__ import annotations

import importlib.util
import io
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.numpy import save_file
from torch.utils.flop_counter import FlopCounterMode
from transformers import DynamicCache, LlamaForCausalLM

from buddy_gen.bench import contenders, limits
from buddy_gen.bench.contenders import LLAMA_CPP, OURS, Contender, Identity, LlamaBench, Measurement, Torch
from buddy_gen.bench.report import Report, make_report
from buddy_gen.bench.session import Sample, Settings, prompt_ids, run_rounds
from buddy_gen.bench.summary import figure
from buddy_gen.bench.work import Limits, ModelWork, Task, read_model_work
from buddy_gen.errors import BuddyError
from buddy_gen.models.tiny import write_tiny_gguf, write_tiny_llama

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
WORK = ModelWork(
    layers=2, weight_bytes=1000, layer_weights=200, head_weights=50, query_rows=8, kv_rows=4, vocabulary=97
)
DECODE = Task("decode", 128, 16)
FAST = Limits(read_bytes_per_second=1e6, fma_flops_per_second=1e9)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("bench") / "tiny", tie_word_embeddings=False)


@pytest.fixture(scope="module")
def compile_time() -> ModuleType:
    spec = importlib.util.spec_from_file_location("compile_time", ROOT / "benchmarks/compile_time.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["compile_time"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def packed_file(folder: Path, model: Path) -> Path:
    """A weights file as the generator writes it, as far as the benchmark reads it: each tensor with a gap behind."""
    tensors, layout = {}, {}
    for name, tensor in LlamaForCausalLM.from_pretrained(model).state_dict().items():
        tensors[name] = tensor.numpy()
        tensors[f"__pad.{len(layout)}"] = np.zeros(8, np.uint8)
        layout[name] = {"panel": 32, "shape": list(tensor.shape)} if tensor.ndim == 2 else {}
    path = folder / "llama.weights.safetensors"
    save_file(tensors, path, metadata={"layout": json.dumps({name: one for name, one in layout.items() if one})})
    return path


class TestWork:
    @pytest.mark.parametrize("tied", [False, True])
    def test_reads_sizes_from_the_header(self, tmp_path: Path, tied: bool) -> None:
        model = LlamaForCausalLM.from_pretrained(write_tiny_llama(tmp_path / "tiny", tie_word_embeddings=tied))
        tensors = {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}
        layout = {name: {"panel": 8, "shape": list(one.shape)} for name, one in tensors.items() if one.ndim == 2}
        path = tmp_path / "w.safetensors"
        save_file(tensors, path, metadata={"layout": json.dumps(layout)})
        work = read_model_work(path)
        parameters = sum(one.size for one in tensors.values())
        embedding = model.get_input_embeddings().weight.numel()
        assert work.weight_bytes == 4 * (parameters if tied else parameters - embedding)
        assert (work.layers, work.query_rows, work.kv_rows, work.vocabulary) == (3, 64, 16, 97)
        assert work.in_floats() == work  # it is in float32 already

    def test_flops_are_those_that_torch_counts(self, tiny: Path, tmp_path: Path) -> None:
        work = read_model_work(packed_file(tmp_path, tiny))
        model = LlamaForCausalLM.from_pretrained(tiny, attn_implementation="eager")
        cache = DynamicCache()
        with torch.inference_mode():
            with FlopCounterMode(display=False) as prefill:
                model(input_ids=torch.tensor([prompt_ids(16, 97)]), cache=cache, logits_to_keep=1)
            with FlopCounterMode(display=False) as decode:
                model(input_ids=torch.tensor([[1]]), cache=cache, logits_to_keep=1)
        assert decode.get_total_flops() == work.flops(Task("decode", 1, 16))
        square = 4 * work.layers * work.query_rows * (16 * 16 - 16 * 17 // 2)  # eager attention is not causal in cost
        assert prefill.get_total_flops() - square == work.flops(Task("prefill", 16))

    def test_roofline_of_decode(self) -> None:
        kv = 2 * 2 * 4 * 4 * (16 + 64.5)  # keys and values, layers, rows, bytes, positions on the average
        assert WORK.bytes_read(DECODE) == 1000 + kv
        assert WORK.roofline(DECODE, FAST) == pytest.approx(1e6 / (1000 + kv))
        assert WORK.bound(DECODE, FAST) == "memory"

    def test_roofline_of_prefill_is_the_slower_limit(self) -> None:
        task = Task("prefill", 100)
        flops = 2 * (200 * 100 + 50) + 4 * 2 * 8 * 100 * 101 / 2
        slow = Limits(1e9, 1e6)
        assert WORK.bound(task, slow) == "compute"
        assert WORK.roofline(task, slow) == pytest.approx(100 / (flops / 1e6))
        assert WORK.bound(task, FAST) == "memory"
        assert WORK.roofline(task, FAST) == pytest.approx(100 / (1000 / 1e6))

    def test_foreign_file(self, tmp_path: Path) -> None:
        save_file({"x": np.zeros(4, np.float32)}, tmp_path / "x.safetensors")
        with pytest.raises(BuddyError, match=r"x\.safetensors is not a weights file that buddy-gen wrote"):
            read_model_work(tmp_path / "x.safetensors")


PROGRAM = {
    "ids": [5] * 129, "stop": "length", "load_seconds": 0.01, "prefill_seconds": 0.5, "decode_seconds": 4.0,
    "peak_rss_bytes": 548_000_000,
}  # fmt: skip


class TestParsing:
    def test_program(self) -> None:
        measured = contenders.parse_program(json.dumps(PROGRAM), DECODE)
        assert measured == Measurement(4.0, (5,) * 129, 0.01, 548_000_000)
        assert contenders.parse_program(json.dumps(PROGRAM), Task("prefill", 16)).seconds == 0.5

    @pytest.mark.parametrize("output", ["", "[]", "{}", "error: no"])
    def test_program_prints_something_else(self, output: str) -> None:
        with pytest.raises(BuddyError, match="instead of its JSON"):
            contenders.parse_program(output, DECODE)

    def test_program_ends_early(self) -> None:
        short = {**PROGRAM, "ids": [5] * 7, "stop": "context"}
        with pytest.raises(BuddyError, match=r"ended early \(context\) at decode 128 after 16"):
            contenders.parse_program(json.dumps(short), DECODE)

    def test_llama_bench(self) -> None:
        entries = [{"n_prompt": 512, "n_gen": 0, "avg_ns": 2.5e9}, {"n_prompt": 0, "n_gen": 128, "avg_ns": 4e9}]
        assert contenders.parse_llama_bench(json.dumps(entries), Task("prefill", 512)) == 2.5
        assert contenders.parse_llama_bench(json.dumps(entries), DECODE) == 4.0
        with pytest.raises(BuddyError, match="no result for prefill 16"):
            contenders.parse_llama_bench(json.dumps(entries), Task("prefill", 16))

    def test_gguf_bytes(self, tiny: Path, tmp_path: Path) -> None:
        peer = LlamaBench(Path("llama-bench"), write_tiny_gguf(tmp_path / "tiny.gguf", tiny, "f32"))
        model = LlamaForCausalLM.from_pretrained(tiny)
        own = peer.work(WORK)
        assert (peer.name, peer.identity.dtype) == ("llama.cpp F32", "F32")
        assert own.weight_bytes == 4 * (model.num_parameters() - model.get_input_embeddings().weight.numel())
        assert own.kv_bytes(1) == WORK.kv_bytes(1) / 2

    def test_limits(self) -> None:
        good = {"read_bytes_per_second": 2e10, "fma_flops_per_second": 1e11}
        assert limits.parse_limits(json.dumps(good)) == Limits(2e10, 1e11)
        both = {**good, "anonymous_bytes_per_second": 3e10}
        assert limits.parse_limits(json.dumps(both)) == Limits(2e10, 1e11, 3e10)
        for bad in ("", "{}", "[]", json.dumps({**good, "read_bytes_per_second": 0})):
            with pytest.raises(BuddyError, match="not its measurements"):
                limits.parse_limits(bad)

    def test_compile_time(self, compile_time: ModuleType) -> None:
        log = "# ninja log v5\n" + "\n".join(
            "\t".join((*times, "0", output, "hash"))
            for *times, output in (
                ("0", "9000", "llama/llama_decode.o"),  # of an earlier build
                ("0", "700", "llama/llama_decode.llvm.mlir"),
                ("0", "700", "/build/llama/llama_decode.llvm.mlir"),
                ("700", "900", "llama/llama_decode.ll"),
                ("900", "1900", "llama/llama_decode.opt.bc"),
                ("1900", "4600", "llama/llama_decode.o"),
                ("0", "1300", "llama/llama_prefill.llvm.mlir"),
                ("0", "5000", "passes/CMakeFiles/buddy-opt.dir/Target.cpp.o"),
            )
        )
        stages = compile_time.parse_ninja_log(log)
        assert stages == pytest.approx({"buddy-opt": 2.0, "mlir-translate": 0.2, "opt": 1.0, "llc": 2.7})
        output = "-- buddy: Capturing prefill, decode ...\n-- buddy: Capturing prefill, decode: 6.3 s\n-- Done\n"
        assert compile_time.parse_steps(output) == {"Capturing prefill, decode": 6.3}
        timings = [
            compile_time.Timings(layers, 9.0, {"Capturing x": 5.0, "Packing": 2.0}, stages) for layers in (2, 30)
        ]
        report = {
            "models": [{**vars(one), "importing": one.importing, "backend": one.backend} for one in timings],
            "second_configure_seconds": 1.0,
            "build_nothing_to_do_seconds": 0.5,
            "rebuild_after_pass_seconds": 30.0,
            "touched_pass": "MatmulVectorize",
        }
        header, rows = compile_time.rows_of(report)
        assert all(len(row) == len(header) for row in rows)
        assert ["capture and import", "5.0", "5.0", "1.00"] in rows
        assert ["back end, all stages", "5.9", "5.9", "1.00"] in rows


class Fake(Contender):
    """A contender whose seconds are chosen, and that notes when it is asked."""

    def __init__(self, identity: Identity, seconds: float, notes: list[str], ids: tuple[int, ...] = (1, 2, 3)) -> None:
        self.identity, self._seconds, self._notes, self._ids = identity, seconds, notes, ids

    def run(self, task: Task, threads: int, prompt: list[int]) -> Measurement:
        assert len(prompt) == (task.prompt if task.kind == "decode" else task.tokens)
        self._notes.append(f"{self.name} {threads} {task.kind}")
        return Measurement(self._seconds, self._ids, 0.02, 5_000_000)


IDENTITIES = [Identity("ours", OURS, "f32", Path("ours")), Identity("theirs", LLAMA_CPP, "F32", Path("theirs"))]


def run(notes: list[str], **settings: object) -> list[Sample]:
    def measure(threads: int, contender: Contender, task: Task) -> Limits:
        notes.append(f"limits {threads} {contender.name}")
        return Limits(4e6 * threads, 1e9)

    both = [Fake(IDENTITIES[0], 0.5, notes), Fake(IDENTITIES[1], 1.5, notes, (1, 2, 4))]
    return run_rounds(both, WORK, replace(Settings(rounds=2, prompts=(16,)), **settings), measure, lambda line: None)


def report_of(samples: list[Sample]) -> Report:
    return make_report(samples, {"model": "x"}, IDENTITIES)


class TestSession:
    def test_interleaves_and_pairs_with_limits(self) -> None:
        notes: list[str] = []
        samples = run(notes, threads=(1,))
        ours = {kind: ["limits 1 ours", f"ours 1 {kind}"] for kind in ("decode", "prefill")}
        theirs = {kind: ["limits 1 theirs", f"theirs 1 {kind}"] for kind in ("decode", "prefill")}
        first = [*ours["decode"], *theirs["decode"], *ours["prefill"], *theirs["prefill"]]
        second = [*theirs["decode"], *ours["decode"], *theirs["prefill"], *ours["prefill"]]
        assert notes == [*first, *second]
        assert [one.round for one in samples] == [0] * 4 + [1] * 4
        assert samples[0].tokens_per_second == 128 / 0.5

    def test_tasks(self) -> None:
        settings = Settings(prompts=(16,), decode_tokens=64, decode_prompts=(4000, 16), contexts=(4096, 8192))
        labels = [task.label for task in settings.tasks()]
        far = "decode 64 after 4000"
        assert labels == ["decode 64 after 16", far, f"{far}, -c 4096", f"{far}, -c 8192", "prefill 16"]

    def test_contexts_are_for_those_who_take_them(self) -> None:
        notes: list[str] = []
        assert len(run(notes, rounds=1, threads=(1,), contexts=(4096,))) == 4  # nobody here takes the third task

    def test_prompts_do_not_change(self) -> None:
        assert prompt_ids(16, 97) == prompt_ids(16, 97) != prompt_ids(17, 97)[:16]
        assert all(0 <= one < 97 for one in prompt_ids(512, 97))


class TestReport:
    def test_figure(self) -> None:
        found = figure([10.0, 12.0, 11.0])
        assert found is not None
        assert (found.median, found.spread, found.samples) == (11.0, pytest.approx(1 / 11), 3)
        assert figure([]) is None

    def test_medians_and_ratios(self) -> None:
        report = report_of(run([]))
        results = {(one.contender, one.threads, one.task): one for one in report.results}
        ours, theirs = (results[name, 2, DECODE.label] for name in ("ours", "theirs"))
        assert ours.tokens_per_second.median == 256
        assert ours.share_of_roofline.median == pytest.approx(256 / WORK.roofline(DECODE, Limits(8e6, 1e9)))
        assert ours.ratio is None and theirs.ratio is not None
        assert theirs.ratio.median == pytest.approx(3.0)
        equal = {one.contender: (one.equal_ids, one.compared_ids) for one in report.costs}
        assert equal == {"ours": (3, 3), "theirs": (2, 3)}
        assert [(one.ours, one.theirs, one.threads) for one in report.comparisons] == [
            ("ours", "theirs", 1),
            ("ours", "theirs", 2),
        ]
        assert report.comparisons[0].ratios["prefill 16"].median == pytest.approx(3.0)

    def test_json_keeps_everything(self) -> None:
        content = json.loads(json.dumps(report_of(run([])).to_json()))
        assert len(content["samples"]) == 16 and content["samples"][0]["read_bytes_per_second"] == 4e6
        assert all(entry["met"] != entry["missed"] or entry["obstacle"] for entry in content["gate"])
        own, _, peak = content["limits"]
        assert own["per_second"]["2"] == {"median": 8e6, "spread": 0.0, "samples": 4}
        assert peak["limit"] == "FMA peak" and peak["per_second"]["1"]["samples"] == 8

    def test_markdown_tables_are_even(self) -> None:
        text = report_of(run([])).markdown()
        assert "- model: x" in text
        tables = [part.splitlines() for part in text.split("\n\n") if part.startswith("|")]
        limit, speed, ratio, gate = tables
        assert [len(limit), len(speed), len(ratio)] == [5, 6, 4] and len(gate) > 4
        for lines in tables:
            assert len({line.count("|") for line in lines}) == 1
        assert "| ours | 1 | 256 ± 0% (39%) |" in text
        assert "| ours / theirs | 1 | 3.00x ± 0% | 3.00x ± 0% |" in text

    def test_one_sample_has_no_spread(self) -> None:
        assert "| ours | 1 | 256 (39%) |" in report_of(run([], rounds=1)).markdown()

    def test_terminal_tables_fit_80_columns(self) -> None:
        console = Console(width=80, record=True, quiet=False, file=io.StringIO())
        names = {"ours": "buddy-gen gguf Q4_1, KV i8", "theirs": "PyTorch eager f32"}
        samples = [replace(one, contender=names[one.contender]) for one in run([])]
        identities = [replace(one, name=names[one.name]) for one in IDENTITIES]
        make_report(samples, {"model": "x"}, identities).print(console)
        text = console.export_text()
        assert "…" not in text and "decode 128 after 16" in text


class TestMachineLimits:
    @pytest.fixture(scope="class")
    @staticmethod
    def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("BUDDY_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
            program = limits.find_limits_program()
            before = program.stat().st_mtime_ns
            assert limits.find_limits_program().stat().st_mtime_ns == before  # compiled once
        return program

    @pytest.fixture(scope="class")
    @staticmethod
    def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
        path = tmp_path_factory.mktemp("limits") / "file"
        path.write_bytes(np.random.default_rng(0).bytes(8_000_001))  # not a whole number of blocks
        return path

    @pytest.mark.parametrize("threads", [1, 2, 3])
    def test_plausible(self, program: Path, file: Path, threads: int) -> None:
        found = limits.measure_limits(program, file, threads, seconds=0.05)
        assert 1e7 < found.read_bytes_per_second < 1e13
        assert 1e7 < found.fma_flops_per_second < 1e13

    def test_reads_every_byte(self, program: Path, tmp_path: Path) -> None:
        words = np.arange(1 << 14, dtype=np.uint32)
        (tmp_path / "words").write_bytes(words.tobytes())
        done = subprocess.run([program, tmp_path / "words", "--seconds", "0.01"], capture_output=True, check=True)
        values = json.loads(done.stdout)
        total = int(words.sum(dtype=np.uint64)) * (values["read_rounds"] + 1)  # and an untimed round
        assert values["checksum"] == total % 2**32

    def test_anonymous_memory(self, program: Path, file: Path) -> None:
        found = limits.measure_limits(program, file, 2, seconds=0.02, anonymous_bytes=1_000_001)
        rate = found.anonymous_bytes_per_second  # a busy machine may take its time over a megabyte
        assert rate is not None and 1e5 < rate < 1e13
        assert limits.measure_limits(program, file, 1, seconds=0.02).anonymous_bytes_per_second is None

    @pytest.mark.parametrize(
        ("arguments", "code", "message"),
        [
            ([], 2, "a file is needed"),
            (["missing"], 1, "the file 'missing' can not be opened"),
            (["/"], 1, "is no regular file"),
            (["x", "--threads", "0"], 2, "--threads takes a number from 1 to 1024, not '0'"),
            (["x", "--threads", "1.5"], 2, "--threads takes a number from 1 to 1024, not '1.5'"),
            (["x", "--seconds", "-1"], 2, "--seconds takes a number from 0.001 to 1024, not '-1'"),
            (["x", "--anonymous", "1"], 2, "--anonymous takes a number from "),
            (["x", "--threads"], 2, "--threads needs a value"),
            (["x", "--nonsense"], 2, "'--nonsense' is unknown"),
        ],
    )
    def test_refusals(self, program: Path, arguments: list[str], code: int, message: str) -> None:
        done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == code
        assert message in done.stderr and done.stderr.count("\n") == 1

    def test_old_program_becomes_a_sentence(self, tmp_path: Path) -> None:
        (tmp_path / "old").write_text("#!/bin/sh\nexit 2\n")
        (tmp_path / "old").chmod(0o755)
        with pytest.raises(BuddyError, match="old is not of this version of buddy-gen; build it again, or remove it"):
            limits.measure_limits(tmp_path / "old", tmp_path, 1, anonymous_bytes=4096)

    def test_failure_becomes_a_sentence(self, program: Path, tmp_path: Path) -> None:
        with pytest.raises(BuddyError, match="can not be opened"):
            limits.measure_limits(program, tmp_path / "missing", 1)


def test_torch_worker_generates_what_transformers_does(tiny: Path) -> None:
    prompt = prompt_ids(16, 97)
    model = LlamaForCausalLM.from_pretrained(tiny)
    expected = model.generate(torch.tensor([prompt]), max_new_tokens=9, do_sample=False)[0, 16:].tolist()
    peer = Torch(tiny)
    try:
        decoded = peer.run(Task("decode", 8, 16), 1, prompt)
        prefilled = peer.run(Task("prefill", 16), 1, prompt)
    finally:
        peer.close()
    assert list(decoded.ids) == expected and list(prefilled.ids) == expected[:1]
    assert decoded.seconds > 0 and decoded.load_seconds and decoded.peak_rss_bytes


def test_torch_worker_failure_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(BuddyError, match="PyTorch eager f32 failed: "):
        Torch(tmp_path / "missing").run(DECODE, 1, [1])


class TestCommand:
    @pytest.fixture
    def folder(self, tiny: Path, tmp_path: Path) -> Path:
        """A folder with a program that answers at once."""
        folder = tmp_path / "built"
        folder.mkdir()
        packed_file(folder, tiny)
        script = """\
            import json, sys
            if "--help" in sys.argv: sys.exit(print("  --warm-up  evaluate once before"))
            n = int(sys.argv[sys.argv.index("-n") + 1])
            region = {"name": "layers.*.up_proj/linear", "calls": 2, "seconds": 0.1, "share": 1}
            entry = {"calls": 1, "seconds": 0.1, "regions": [region]}
            print(json.dumps({"ids": [1] * n, "stop": "length", "load_seconds": 0.01, "prefill_seconds": 0.5,
                              "decode_seconds": 1.0, "peak_rss_bytes": 1000, "prefilled_tokens": 16,
                              "profile": [{"entry": "prefill", **entry}, {"entry": "decode", **entry}]}))
        """
        lines = "\n".join(line.removeprefix(" " * 12) for line in script.splitlines())
        (folder / "buddy-llama-run").write_text(f"#!{sys.executable}\n{lines}\n")
        (folder / "buddy-llama-run").chmod(0o755)
        limits_script = '#!/bin/sh\necho \'{"read_bytes_per_second": 2e10, "fma_flops_per_second": 1e11}\'\n'
        (folder / "machine-limits").write_text(limits_script)
        (folder / "machine-limits").chmod(0o755)
        return folder

    def bench(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "buddy_gen.bench", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def test_json_and_save(self, folder: Path, tmp_path: Path) -> None:
        saved = tmp_path / "saved.json"
        done = self.bench(folder, "--peers", "none", "--quick", "--json", "--save", saved)
        assert done.returncode == 0, done.stderr
        content = json.loads(done.stdout)
        assert content == json.loads(saved.read_text())
        assert len(content["samples"]) == 2 * 2 * 4
        assert content["about"]["prefill of buddy-gen"] == "warm"
        assert "16/16  buddy-gen f32, 2 threads, prefill 512: 1024.0 tokens/s" in done.stderr

    def test_markdown_and_gate(self, folder: Path) -> None:
        done = self.bench(folder, "--peers", "none", "--rounds", 1, "--prompts", 16, "--markdown", "--gate")
        assert done.returncode == 1  # a target is missed
        assert "| buddy-gen f32 | 2 | 128 (" in done.stdout and "| MISSED |" in done.stdout

    def test_gate_without_a_target(self, folder: Path) -> None:
        done = self.bench(folder, "--peers", "none", "--rounds", 1, "--prompts", 16, "--threads", 4, "--gate")
        assert done.returncode == 1 and "The gate has no target for what was measured" in done.stderr

    def test_two_builds(self, folder: Path, tmp_path: Path) -> None:
        other = tmp_path / "other"
        shutil.copytree(folder, other)
        done = self.bench(folder, other, "--peers", "none", "--rounds", 1, "--prompts", "none", "--markdown")
        assert done.returncode == 0, done.stderr
        assert "| buddy-gen f32 (built) | 1 |" in done.stdout and "| buddy-gen f32 (other) | 1 |" in done.stdout

    def test_long_contexts_and_kernels(self, folder: Path) -> None:
        options = ["--peers", "none", "--rounds", 1, "--prompts", 16, "--tokens", 8, "--threads", 1]
        options += ["--decode-at", "16,400", "--contexts", "512,600", "--kernels", "--markdown"]
        done = self.bench(folder, *options)
        assert done.returncode == 0, done.stderr
        assert "buddy-gen f32, 1 thread, decode 8 after 400: " in done.stdout
        assert "times -c 512" in done.stdout and "| up_proj |" in done.stdout

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--peers", "x"], "The peer 'x' is unknown; choose from eager, compile, llama.cpp, or none."),
            (["--threads", "1,x"], "--threads takes numbers from 1 with commas between them, not '1,x'."),
            (["--decode-at", "none"], "--decode-at takes numbers from 1 with commas between them, not 'none'."),
            (["--contexts", "64"], "--contexts 64 is too short for 128 tokens behind 16, which need 145; lower"),
            (["--gguf", "x.gguf"], "give its path with --llama-bench"),
            (["/missing/too"], "/missing/too has no buddy-llama-run"),
            (["--json", "--markdown"], "Only one of --json and --markdown"),
            (["--peers", "llama.cpp"], "give its path with --llama-bench"),
            (["--model", "/missing"], "/missing cannot be read (No such file or directory)"),
        ],
    )
    def test_refusals(self, folder: Path, arguments: list[str], message: str) -> None:
        done = self.bench(folder, *arguments)
        assert done.returncode == 1
        assert message in done.stderr and "Traceback" not in done.stderr

    def test_folder_without_a_program(self, tmp_path: Path) -> None:
        done = self.bench(tmp_path)
        assert done.returncode == 1 and "has no buddy-llama-run; name a folder" in done.stderr
