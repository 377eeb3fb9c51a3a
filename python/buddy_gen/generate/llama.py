"""A LLaMA's build: captured, imported, packed and described."""

from __future__ import annotations

import functools
import hashlib
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import torch
from torch import fx

from buddy_gen.calibration.rounded_weights import RoundedWeights
from buddy_gen.calibration.text import TextChoice, read_windows
from buddy_gen.capture import CapturedGraph, capture_llama
from buddy_gen.errors import BuddyError
from buddy_gen.generate.manifest import Manifest, generator_sources, sources_hash, write_if_changed
from buddy_gen.generate.packing import packed_tensor
from buddy_gen.generate.progress import Progress
from buddy_gen.generate.vocabulary import Vocabulary, prepare_vocabulary
from buddy_gen.importer import CACHE_DTYPES, CacheShape, ImportedModule, check_supported, import_graph
from buddy_gen.models import open_model
from buddy_gen.models.description import ModelDescription
from buddy_gen.models.llama import sizes_of
from buddy_gen.parameters import StoredParameter, collect_parameters
from buddy_gen.target import TARGETS, Target
from buddy_gen.transforms.layers import NotIsomorphicError, Unit, schedule
from buddy_gen.transforms.precision import Precision
from buddy_gen.transforms.quantization import assign_formats
from buddy_gen.version import version
from buddy_gen.weights.formats import Q4_1, Format
from buddy_gen.weights.packed import WeightsLayout, WeightsMetadata, read_header, write_weights

Graph = tuple[CapturedGraph, Sequence[Unit]]


def capture_and_schedule(description: ModelDescription, entries: Sequence[str]) -> list[Graph]:
    """Captures a model by representatives of its layers, and all of them where those prove to differ."""
    try:
        return [(captured, schedule(captured)) for captured in capture_llama(description.config, entries)]
    except NotIsomorphicError:
        graphs = capture_llama(description.config, entries, merge_layers=False)
        return [(captured, list(_calls(captured))) for captured in graphs]


def _calls(captured: CapturedGraph) -> Sequence[fx.Node]:
    return [node for node in captured.graph.nodes if node.op == "call_function"]


def program_digest(captured: CapturedGraph) -> str:
    """A hash of what a graph computes: ops, constants, shapes and structure, not names."""
    places = {node: place for place, node in enumerate(captured.graph.nodes)}
    digest = hashlib.sha256(repr(captured.runs).encode())
    for node in captured.graph.nodes:
        args = fx.node.map_arg((node.args, node.kwargs), lambda source: places[source])
        value = node.meta.get("val")
        shape = f"{list(value.shape)}{value.dtype}" if isinstance(value, torch.Tensor) else str(value)
        digest.update(f"{node.op}{node.target if node.op == 'call_function' else ''}{args}{shape}\n".encode())
    return digest.hexdigest()


class LlamaGenerator:
    """Writes a model's artefacts: MLIR, weights, vocabulary, header, CMake fragment and the manifest, in this order.

    Args:
        key: The options of this run, see `buddy_gen.generate.run`.
        path: The model's file or folder.
        manifest: The manifest of the last run.
        progress: Where to tell what happens.
        text: What weights are calibrated on.
    """

    def __init__(
        self, key: dict[str, Any], path: Path, manifest: Manifest, progress: Progress, text: TextChoice | None = None
    ) -> None:
        self.key, self.path, self.manifest, self.progress, self.text = key, path, manifest, progress, text
        self.name: str = key["name"]
        self.output_dir, self.runtime_dir = Path(key["output_dir"]), Path(key["runtime_dir"])
        self.target: Target = TARGETS[key["target"]]
        self.precision = Precision(key["dtype"], key["group"], key["kv_dtype"])
        self.rounded = RoundedWeights(self.output_dir / f".{self.name}.rounded")

    def run(self) -> dict[str, Any]:
        """Generates everything.

        Returns:
            The report that the manifest keeps.

        Raises:
            BuddyError: See `buddy_gen.generate.run.generate`.
        """
        progress = self.progress
        with progress.step(f"Reading the model {self.path.name}"):
            description = open_model(self.path)
            vocabulary, reason = prepare_vocabulary(description)
        if vocabulary is None:
            progress.warn(f"the program will take token ids only (--ids): {reason}")
        elif vocabulary.chat is None:
            progress.warn(f"the program will not chat (-cnv): {vocabulary.chat_unavailable_reason}")
        windows = self._windows(description, vocabulary, reason)
        entries = self.key["entry_points"]
        with progress.step(f"Capturing {', '.join(entries)} with TorchDynamo"):
            graphs = capture_and_schedule(description, entries)
        check_supported([captured for captured, _ in graphs], tuple(self.key["dialect_priority"]))
        parameters = assign_formats(
            collect_parameters(graphs), self.precision, description.weights, description.tied_head
        )
        layout = WeightsLayout(
            [
                packed_tensor(description, stored, self.target.panel, self.precision, self.rounded.rows)
                for stored in parameters
            ]
        )
        abi = self._abi(description, graphs, layout)
        with progress.step("Importing to MLIR"):
            modules, stems = self._import(description, graphs, parameters, layout, abi)
        formats = {stored.name: stored.format for stored in parameters if stored.format == Q4_1}
        round_weights = functools.partial(self._round, description, formats, windows)
        model_id = self._weights(description, layout, abi, vocabulary, round_weights)
        outputs = [self.output_dir / f"{stem}.mlir" for stem in stems] + [self._weights_path()]
        if vocabulary is not None:
            vocabulary.write(self._vocab_path(), abi=abi, model_id=model_id)
            progress.wrote(self._vocab_path())
            outputs.append(self._vocab_path())
        elif self._vocab_path().exists():
            self._vocab_path().unlink()
        outputs += self._render(description, abi, stems, vocabulary)
        report = self._report(description, abi, model_id, modules, outputs, vocabulary)
        self.manifest.record(self.key, self.path, description.files, outputs, report)
        return report

    # Calibration

    def _windows(self, description: ModelDescription, vocabulary: Vocabulary | None, reason: str) -> list[list[int]]:
        """The tokens of the calibration text; none without one."""
        if self.text is None:
            return []
        if vocabulary is None:
            raise BuddyError(f"a calibration on a text needs a tokenizer: {reason}")
        return read_windows(self.text, vocabulary, description.context_length)

    def _round(
        self, description: ModelDescription, formats: Mapping[str, Format], windows: Sequence[Sequence[int]]
    ) -> None:
        """Rounds the weights on the calibration text."""
        if self.text is None:
            return
        from buddy_gen.calibration.calibrating import round_on_text

        with self.progress.step(f"Calibrating on {self.text.path.name} ({sum(map(len, windows))} tokens)"):
            round_on_text(description, formats, windows, self.rounded, self.progress.layers)

    # Layout and ABI

    def _weights_path(self) -> Path:
        return self.runtime_dir / f"{self.name}.weights.safetensors"

    def _vocab_path(self) -> Path:
        return self.runtime_dir / f"{self.name}.vocab"

    def _abi(self, description: ModelDescription, graphs: Sequence[Graph], layout: WeightsLayout) -> str:
        """One hash over everything that program and weights must agree on."""
        content = {
            "programs": {captured.entry: program_digest(captured) for captured, _ in graphs},
            "dtype": self.key["dtype"],
            "kv_dtype": self.precision.kv_dtype,
            "formats": [t.layout for t in layout.tensors],
            "target": self.target.summary(),
            "layout": [(t.name, t.dtype, list(t.shape), layout.offset(t.name)) for t in layout.tensors],
            "cache": [description.config.num_hidden_layers, *self._cache_shape(description)],
            "vocab_size": description.config.vocab_size,
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def _cache_shape(self, description: ModelDescription) -> tuple[int, int]:
        config = description.config
        sizes = sizes_of(config)
        return sizes.kv_heads, sizes.head_dim

    def _cache(self, description: ModelDescription) -> CacheShape:
        layers, sizes = int(description.config.num_hidden_layers), self._cache_shape(description)
        return CacheShape(layers, *sizes, CACHE_DTYPES[self.precision.kv_dtype])

    # Artefacts

    def _import(
        self,
        description: ModelDescription,
        graphs: Sequence[Graph],
        parameters: Sequence[StoredParameter],
        layout: WeightsLayout,
        abi: str,
    ) -> tuple[list[ImportedModule], list[str]]:
        cache = self._cache(description)
        modules, stems = [], []
        for captured, units in graphs:
            stem = f"{self.name}_{captured.entry}"
            module = import_graph(
                captured,
                units,
                stem,
                parameters=parameters,
                offsets=layout,
                target=self.target,
                priority=tuple(self.key["dialect_priority"]),
                cache=cache,
                abi=abi,
            )
            path = self.output_dir / f"{stem}.mlir"
            write_if_changed(path, module.text)
            self.progress.wrote(path)
            modules.append(module)
            stems.append(stem)
        return modules, stems

    def _weights(
        self,
        description: ModelDescription,
        layout: WeightsLayout,
        abi: str,
        vocabulary: Vocabulary | None,
        round_weights: Callable[[], None],
    ) -> str:
        """Writes the weights, unless those of an earlier run are the same; gives the model id."""
        path = self._weights_path()
        digest = vocabulary.digest if vocabulary is not None else ""
        deciding = ("calibration", "weights", "models")
        sources = [source for source in generator_sources() if source.parent.name in deciding]
        calibration = self.key["calibration"]
        made_from = {"abi": abi, "vocabulary": digest, "sources": sources_hash(sources), "calibration": calibration}
        report = self.manifest.data.get("report") or {}
        if report.get("weights_made_from") == made_from and self._weights_reusable(path):
            self.progress.say(f"Weights are unchanged: {path}")
            self._made_from = made_from
            return str(report["model_id"])
        metadata = WeightsMetadata(
            name=description.name,
            abi=abi,
            dtype=self.key["dtype"],
            target=self.target.name,
            exporter=version(),
            further={
                "source": self.path.name,
                "kv_dtype": self.precision.kv_dtype,
                "cache_bytes_per_position": str(self._cache(description).bytes_per_position),
                "entry_points": ",".join(self.key["entry_points"]),
                **({} if calibration is None else {"calibration": json.dumps(calibration)}),
            },
        )

        def model_id(content: str) -> str:
            return hashlib.sha256(f"{content}{digest}".encode()).hexdigest()

        with self.rounded:
            round_weights()
            with self.progress.step("Packing the weights"):
                info = write_weights(path, layout, metadata, model_id, self.progress.bytes)
                self.progress.wrote(path)
        self._made_from = made_from
        return info.model_id

    def _weights_reusable(self, path: Path) -> bool:
        entry = self.manifest.data.get("outputs", {}).get(str(path))
        if entry is None or not path.is_file() or path.stat().st_size != entry[0]:
            return False
        if not self.manifest.inputs_unchanged():
            return False
        try:
            header = read_header(path)
        except BuddyError:
            return False
        return bool(header.metadata.get("abi") == self.manifest.data["report"].get("abi"))

    def _render(
        self, description: ModelDescription, abi: str, stems: list[str], vocabulary: Vocabulary | None
    ) -> list[Path]:
        environment = jinja2.Environment(
            loader=jinja2.PackageLoader("buddy_gen.generate"),
            undefined=jinja2.StrictUndefined,
            keep_trailing_newline=True,
        )
        config = description.config
        label = re.sub(r"[^ -~]|[\"\\]", "?", description.name)
        kv_heads, head_dim = self._cache_shape(description)
        header = environment.get_template("config.h.j2").render(
            name=self.name,
            abi=abi,
            description=f"{label} ({self.key['dtype']})",
            exporter=version(),
            dtype=self.key["dtype"],
            target=self.target.name,
            cpu_features=list(self.target.cpu_features),
            vocab_size=config.vocab_size,
            layers=config.num_hidden_layers,
            kv_heads=kv_heads,
            head_dim=head_dim,
            kv_dtype=self.precision.kv_dtype,
            hidden_size=config.hidden_size,
            context_length=description.context_length,
            weights_file=self._weights_path().name,
            vocab_file=self._vocab_path().name if vocabulary is not None else None,
            end_ids=description.eos_token_ids,
            entry_points=self.key["entry_points"],
        )
        texts = [] if self.text is None else [self.text.path]
        depends = [str(path) for path in [*description.files, *texts, *generator_sources()]]
        fragment = environment.get_template("model.cmake.j2").render(
            name=self.name,
            modules=stems,
            output_dir=str(self.output_dir),
            runtime_dir=str(self.runtime_dir),
            weights_file=str(self._weights_path()),
            vocab_file=str(self._vocab_path()) if vocabulary is not None else None,
            triple=self.target.triple,
            cpu=self.target.cpu,
            features=self.target.features,
            depends=depends,
            command=sys.argv[1:],
        )
        paths = []
        for name, text in ((f"{self.name}_config.h", header), (f"{self.name}.cmake", fragment)):
            path = self.output_dir / name
            write_if_changed(path, text)
            self.progress.wrote(path)
            paths.append(path)
        return paths

    def _report(
        self,
        description: ModelDescription,
        abi: str,
        model_id: str,
        modules: Sequence[ImportedModule],
        outputs: Sequence[Path],
        vocabulary: Vocabulary | None,
    ) -> dict[str, Any]:
        served: Counter[tuple[str, str]] = sum((module.dialects for module in modules), Counter())
        by_op: dict[str, dict[str, int]] = {}
        for (op, dialect), count in sorted(served.items()):
            by_op.setdefault(op, {})[dialect] = count
        return {
            "model": description.name,
            "abi": abi,
            "model_id": model_id,
            "target": self.target.name,
            "dtype": self.key["dtype"],
            "group": self.key["group"],
            "kv_dtype": self.key["kv_dtype"],
            "calibration": self.key["calibration"],
            "dialects": by_op,
            "layer_functions": {m.signature.partition("(")[0]: m.layer_functions for m in modules},
            "outputs": {str(path): path.stat().st_size for path in outputs},
            "chat": vocabulary is not None and vocabulary.chat is not None,
            "chat_unavailable_reason": vocabulary.chat_unavailable_reason if vocabulary is not None else None,
            "weights_made_from": self._made_from,
        }
