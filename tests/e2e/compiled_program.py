"""buddy-llama-run around a model that a test makes: generated, compiled and linked as CMake does it, and run."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import LlamaForCausalLM

from buddy_gen.generate.__main__ import parser
from buddy_gen.generate.run import generate
from buddy_gen.models import open_model
from buddy_gen.native import find_tools

ROOT = Path(__file__).resolve().parents[2]
APP = ROOT / "cpp" / "apps" / "llama"
Floats = npt.NDArray[np.float32]


def checked(command: Sequence[str | Path]) -> str:
    """Runs a command that must succeed; gives its standard output."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command[0]} failed:\n{done.stderr[-4000:]}"
    return done.stdout


@dataclass(frozen=True)
class Platform:
    """What compiles programs for one kind of machine, and runs them here."""

    compiler: str
    opt: str
    llc: str
    link: tuple[str, ...] = ("-pthread",)
    emulator: tuple[str, ...] = ()

    @classmethod
    def native(cls) -> Platform:
        tools = find_tools()
        return cls(tools.compiler, tools.opt, tools.llc)


class AppObjects:
    """The program's parts that no model decides, compiled once for a session."""

    def __init__(self, folder: Path, platform: Platform | None = None) -> None:
        self.folder = folder
        self.platform = platform or Platform.native()
        sources = [*(ROOT / "cpp/containers").glob("*.cpp"), *(ROOT / "cpp/runtime").glob("*.cpp")]
        own = [path for path in APP.glob("*.cpp") if path.name != "Library.cpp"]
        self.of_model = [path for path in own if "ModelConfig.h" in path.read_text(encoding="utf-8")]
        sources += [path for path in own if path not in self.of_model]
        self.objects = self.compile(sources, folder, [])

    def compile(self, sources: Sequence[Path], folder: Path, flags: Sequence[str]) -> list[Path]:
        """Compiles sources into `folder`, two at a time."""
        include = [f"-I{ROOT / part}" for part in ("cpp/containers", "cpp/runtime", "cpp/apps/llama")]
        base = [self.platform.compiler, "-std=c++17", "-O1", "-c", *include, *flags]
        objects = [folder / f"{source.parent.name}-{source.stem}.o" for source in sources]
        commands = [[*base, str(s), "-o", str(o)] for s, o in zip(sources, objects, strict=True)]
        for pair in (commands[i : i + 2] for i in range(0, len(commands), 2)):
            running = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for command in pair]
            for process in running:
                _, errors = process.communicate()
                assert process.returncode == 0, errors
        return objects


@dataclass
class Program:
    """A built program with its model."""

    model: Path
    folder: Path
    report: dict[str, Any]
    emulator: tuple[str, ...] = ()

    @property
    def executable(self) -> Path:
        return self.folder / "buddy-llama-run"

    def run(self, *arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[bytes]:
        """One run of the program."""
        return subprocess.run(
            [*self.emulator, str(self.executable), *arguments],
            capture_output=True,
            check=False,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **(env or {})},
        )

    def answer(self, *arguments: str) -> dict[str, Any]:
        """One run with --json that must succeed."""
        done = self.run("--json", *arguments)
        assert done.returncode == 0, done.stderr.decode()
        parsed: dict[str, Any] = json.loads(done.stdout)
        return parsed

    def logits(self, ids: Sequence[int], *arguments: str) -> Floats:
        """The logits that --dump-logits writes: (rows, vocabulary)."""
        path = self.folder / "logits.npy"
        text = ",".join(map(str, ids))
        done = self.run("--ids", text, "-n", "0", "--dump-logits", str(path), *arguments)
        assert done.returncode == 0, done.stderr.decode()
        loaded: Floats = np.load(path)
        path.unlink()
        return loaded


def build_program(model: Path, folder: Path, app: AppObjects, *options: str) -> Program:
    """Generates and compiles `model` into a program in `folder`.

    Args:
        model: A Hugging Face folder or a GGUF file.
        folder: Where everything goes.
        app: The program's common objects.
        options: Further options of the generator.
    """
    out = folder / "out"
    arguments = ["--name", "llama", "--model", str(model), "--output-dir", str(out), "--runtime-dir", str(folder)]
    report = generate(parser().parse_args([*arguments, "--quiet", *options]))
    platform = app.platform
    objects = compile_stages(out, ["llama_prefill", "llama_decode"], platform)
    flags = ["-DBUDDY_MODEL=llama", '-DBUDDY_MODEL_CONFIG_HEADER="llama_config.h"', f"-I{out}"]
    objects += app.compile(app.of_model, out, flags)
    program = Program(model, folder, report, platform.emulator)
    checked([platform.compiler, *objects, *app.objects, "-o", program.executable, *platform.link, "-lm"])
    return program


def compile_stages(out: Path, stems: Sequence[str], platform: Platform) -> list[Path]:
    """STEM.mlir -> STEM.o with the tools of this build and of the platform."""
    tools = find_tools()
    fragment = (out / "llama.cmake").read_text(encoding="utf-8")
    cpu, features = (re.findall(rf"^ *{key} \[==\[(.*)\]==\]", fragment, re.M)[0] for key in ("CPU", "FEATURES"))
    triple = re.findall(r"^ *TRIPLE (\S+)", fragment, re.M)[0]
    machine = [f"-mtriple={triple}", f"-mcpu={cpu}", *([f"-mattr={features}"] if features else [])]
    abi = ["-target-abi=lp64d"] if triple.startswith("riscv64") else []
    objects = []
    for stem in stems:
        base = str(out / stem)
        checked([tools.buddy_opt, "--buddy-lower-to-llvm", f"{base}.mlir", "-o", f"{base}.llvm.mlir"])
        checked([tools.mlir_translate, "--mlir-to-llvmir", f"{base}.llvm.mlir", "-o", f"{base}.ll"])
        checked([platform.opt, "-O3", *machine, f"{base}.ll", "-o", f"{base}.opt.bc"])
        code = ["-O3", *machine, *abi, "-filetype=obj", "-relocation-model=pic"]
        checked([platform.llc, *code, f"{base}.opt.bc", "-o", f"{base}.o"])
        objects.append(Path(f"{base}.o"))
    return objects


def eager_model(model: Path) -> LlamaForCausalLM:
    """Hugging Face's own f32 model; a GGUF's weights come through the project's reader, the computation does not."""
    if model.is_dir():
        return LlamaForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager").eval()
    description = open_model(model)
    description.config._attn_implementation = "eager"
    eager = LlamaForCausalLM(description.config).eval()
    state = {name: torch.from_numpy(description.weights.read(name)) for name in description.weights.names()}
    eager.load_state_dict(state, strict=False)
    eager.tie_weights()
    return eager


def eager_logits(eager: LlamaForCausalLM, ids: Sequence[int]) -> Floats:
    """Logits of every position: (length, vocabulary)."""
    with torch.no_grad():
        result: Floats = eager(torch.tensor([list(ids)])).logits[0].numpy()
    return result


def eager_greedy(eager: LlamaForCausalLM, ids: Sequence[int], count: int, ends: Sequence[int] = ()) -> list[int]:
    """Greedy continuation of `count` tokens at most; an end token stops it and is left out."""
    from transformers import DynamicCache

    cache, current, made = DynamicCache(), torch.tensor([list(ids)]), []
    with torch.no_grad():
        for _ in range(count):
            logits = eager(current, cache=cache, use_cache=True).logits[0, -1]
            token = int(logits.argmax())
            if token in ends:
                break
            made.append(token)
            current = torch.tensor([[token]])
    return made
