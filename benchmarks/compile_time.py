"""How long compiling takes, and how it grows with depth: ``python benchmarks/compile_time.py`` (see README.md).

Two models with the default model's shapes and random weights, one shallow, one deep, go through the project's own
CMake build in one build folder. Stage times come from Ninja's log.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python"))

from buddy_gen.errors import BuddyError  # noqa: E402
from buddy_gen.models.tiny import write_tiny_llama  # noqa: E402

# SmolLM2-135M but for its depth.
SHAPES: dict[str, Any] = {
    "hidden_size": 576,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "rope_theta": 100000.0,
    "tie_word_embeddings": True,
}
STAGES = {".llvm.mlir": "buddy-opt", ".ll": "mlir-translate", ".opt.bc": "opt", ".o": "llc"}
BACKEND_TARGET = 1.2  # times the shallow model's


@dataclass(frozen=True)
class Timings:
    """Seconds for one model. `steps` are the generator's own, `stages` add up over the modules of the model."""

    layers: int
    configure: float
    steps: dict[str, float]
    stages: dict[str, float]

    @property
    def importing(self) -> float:
        """Capture and import; packing grows with the weights and is left out."""
        return sum(seconds for step, seconds in self.steps.items() if step.startswith(("Capturing", "Importing")))

    @property
    def backend(self) -> float:
        return sum(self.stages.values())


def parse_steps(output: str) -> dict[str, float]:
    """The generator's steps and their seconds, in what `cmake` printed."""
    found = re.findall(r"^(?:-- )*buddy: (\S.*): (\d+\.\d) s$", output, flags=re.MULTILINE)
    return {step: float(seconds) for step, seconds in found}


def parse_ninja_log(log: str, folder: str = "llama/") -> dict[str, float]:
    """Seconds of each back-end stage in a .ninja_log, modules added up; the last entry of an output counts."""
    last: dict[str, float] = {}
    for line in log.splitlines():
        fields = line.split("\t")
        if len(fields) == 5 and fields[3].startswith(folder):
            last[fields[3]] = (int(fields[1]) - int(fields[0])) / 1000
    stages = dict.fromkeys(STAGES.values(), 0.0)
    for output, seconds in last.items():
        suffix = next((end for end in STAGES if re.fullmatch(rf"[a-z0-9_]+{re.escape(end)}", Path(output).name)), None)
        if suffix is not None:
            stages[STAGES[suffix]] += seconds
    return stages


class Build:
    """A build folder of this clone, without the tests and without a compiler cache."""

    def __init__(self, folder: Path, jobs: int, definitions: Sequence[str]) -> None:
        self.folder = folder
        self._jobs = jobs
        self._definitions = [f"-DPython3_EXECUTABLE={sys.executable}", "-DBUDDY_TESTS=OFF", *definitions]
        self._environment = os.environ | {"CCACHE_DISABLE": "1"}

    def configure(self, model: Path) -> tuple[float, str]:
        """Seconds and output of a configure with `model`."""
        command = ["cmake", "-G", "Ninja", "-S", str(ROOT), "-B", str(self.folder), *self._definitions]
        return self._run([*command, f"-DBUDDY_LLAMA_MODEL={model}"])

    def build(self) -> float:
        """Seconds of a build of everything."""
        return self._run(["cmake", "--build", str(self.folder), "-j", str(self._jobs)])[0]

    def forget_pass(self, name: str) -> None:
        """Deletes a pass's object file: what follows is what follows a change of its source."""
        objects = list(self.folder.glob(f"passes/**/{name}.cpp.o"))
        if not objects:
            raise BuddyError(f"There is no pass {name} in {self.folder / 'passes'}; name a file of passes/.")
        for one in objects:
            one.unlink()

    def stages(self) -> dict[str, float]:
        return parse_ninja_log((self.folder / ".ninja_log").read_text(encoding="utf-8"))

    def _run(self, command: list[str]) -> tuple[float, str]:
        start = time.monotonic()
        done = subprocess.run(
            command, env=self._environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        seconds = time.monotonic() - start
        if done.returncode != 0:
            tail = "\n".join(done.stdout.strip().splitlines()[-15:])
            raise BuddyError(f"`{' '.join(command[:3])} ...` failed:\n{tail}")
        return seconds, done.stdout


def measure(build: Build, models: Mapping[int, Path], touched: str, console: Console) -> dict[str, Any]:
    """Everything, with `models` from layers to folders; the report as JSON types. Raises BuddyError."""
    depths = sorted(models)
    console.print("building buddy-opt ...")
    build.configure(models[depths[0]])
    first_build = build.build()
    timings = []
    for depth in depths:
        console.print(f"compiling a model with {depth} layers ...")
        # What is there from before is forgotten, so that each model is imported and compiled from nothing.
        shutil.rmtree(build.folder / "llama", ignore_errors=True)
        seconds, output = build.configure(models[depth])
        build.build()
        timings.append(Timings(depth, seconds, parse_steps(output), build.stages()))
    console.print("configuring again ...")
    second_configure = build.configure(models[depths[-1]])[0]
    nothing = build.build()
    console.print(f"building again after a change of {touched} ...")
    build.forget_pass(touched)
    rebuild = build.build()
    shallow, deep = timings[0], timings[-1]
    return {
        "models": [{**asdict(one), "importing": one.importing, "backend": one.backend} for one in timings],
        "backend_ratio": deep.backend / shallow.backend,
        "import_ratio": deep.importing / shallow.importing,
        "first_build_seconds": first_build,
        "second_configure_seconds": second_configure,
        "build_nothing_to_do_seconds": nothing,
        "rebuild_after_pass_seconds": rebuild,
        "touched_pass": touched,
    }


def rows_of(report: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """The report as a table: a header and rows."""
    models = report["models"]
    header = ["seconds", *(f"{one['layers']} layers" for one in models), "ratio"]

    def row(title: str, values: Sequence[float]) -> list[str]:
        ratio = f"{values[-1] / values[0]:.2f}" if values[0] > 0 else ""
        return [title, *(f"{value:.1f}" for value in values), ratio]

    rows = [row("configure in all", [one["configure"] for one in models])]
    rows.append(row("capture and import", [one["importing"] for one in models]))
    rows += [row(f"{stage}, all modules", [one["stages"][stage] for one in models]) for stage in STAGES.values()]
    rows.append(row("back end, all stages", [one["backend"] for one in models]))
    empty = [""] * (len(models) - 1)
    for title, key in (
        ("second configure", "second_configure_seconds"),
        ("build with nothing to do", "build_nothing_to_do_seconds"),
        (f"build after a change of {report['touched_pass']}", "rebuild_after_pass_seconds"),
    ):
        rows.append([title, *empty, f"{report[key]:.1f}", ""])
    return header, rows


def show(report: Mapping[str, Any], as_markdown: bool) -> None:
    """Prints the table, and whether the back end's growth meets its target."""
    header, rows = rows_of(report)
    met = "met" if report["backend_ratio"] <= BACKEND_TARGET else "MISSED"
    sentence = (
        f"back end, deep against shallow: {report['backend_ratio']:.2f}x (target at most {BACKEND_TARGET}x: {met})"
    )
    if as_markdown:
        lines = [header, ["---", *("---:" for _ in header[1:])], *rows]
        print("\n".join(f"| {' | '.join(cells)} |" for cells in lines) + f"\n\n- {sentence}")
        return
    table = Table()
    for number, title in enumerate(header):
        table.add_column(title, justify="right" if number else "left")
    for cells in rows:
        table.add_row(*cells)
    console = Console(highlight=False)
    console.print(table)
    console.print(sentence)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0, or 1 after one sentence on standard error."""
    parser = argparse.ArgumentParser(prog="compile_time.py", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--layers", default="2,30", help="depths that are compared (default: 2,30)")
    parser.add_argument("--build", type=Path, help="the build folder (default: a temporary one)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="commands at once (default: the CPUs)")
    parser.add_argument("--touch", default="MatmulVectorize", help="the pass that changes (default: MatmulVectorize)")
    parser.add_argument("-D", dest="definitions", action="append", default=[], metavar="NAME=VALUE", help="for CMake")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--markdown", action="store_true", help="print Markdown")
    options = parser.parse_args(arguments)
    if not re.fullmatch(r"\d+(,\d+)+", options.layers):
        parser.error(f"--layers takes at least two numbers with commas between them, not {options.layers}")
    console = Console(stderr=True, highlight=False)
    try:
        with tempfile.TemporaryDirectory() as scratch:
            console.print("writing the models ...")
            models = {
                int(depth): write_tiny_llama(
                    Path(scratch) / f"layers-{depth}", dtype="bf16", num_hidden_layers=int(depth), **SHAPES
                )
                for depth in options.layers.split(",")
            }
            build = Build(
                options.build or Path(scratch) / "build", options.jobs, [f"-D{d}" for d in options.definitions]
            )
            report = measure(build, models, options.touch, console)
    except (BuddyError, OSError) as error:
        print(f"compile_time: {error}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(report, indent=1))
    else:
        show(report, options.markdown)
    return 0


if __name__ == "__main__":
    sys.exit(main())
