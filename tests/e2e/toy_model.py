"""buddy-llama-run around a toy in the place of a compiled model: builds it, and knows what it must answer.

The toy is tests/e2e/toy-model/toy-model.cpp; its vocabulary has one token for each byte and three special ones.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import numpy.typing as npt
from transformers.utils.chat_template_utils import render_jinja_template

from buddy_gen.tokenizers import reduce_chat_template, write_vocab
from buddy_gen.tokenizers.spec import AddedToken, TokenizerKind, TokenizerSpec, TokenType
from buddy_gen.weights.packed import PackedTensor, WeightsLayout, WeightsMetadata, write_weights

ROOT = Path(__file__).resolve().parents[2]
VOCAB, CONTEXT, LAYERS, KV_HEADS, HEAD_DIM = 264, 256, 2, 3, 4
ABI, OTHER_ABI, MODEL_ID = "ab" * 32, "cd" * 32, "12" * 32
START, END, BOS = 256, 257, 258
CHAT_TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m['role'] }}\n{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
Floats = npt.NDArray[np.float32]


def render_config(name: str, **changes: Any) -> str:
    """The config header of a toy called `name`, out of the generator's own template."""
    template = ROOT / "python" / "buddy_gen" / "generate" / "templates" / "config.h.j2"
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    values: dict[str, Any] = {
        "name": name,
        "abi": ABI,
        "description": 'a "toy" \\ model',
        "exporter": "0.1.0",
        "dtype": "f32",
        "target": "toy-target",
        "cpu_features": [],
        "vocab_size": VOCAB,
        "layers": LAYERS,
        "kv_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_size": 12,
        "context_length": CONTEXT,
        "weights_file": "toy.weights.safetensors",
        "vocab_file": "toy.vocab",
        "entry_points": ["prefill", "decode"],
    }
    return environment.from_string(template.read_text(encoding="utf-8")).render(values | changes)


# The programs, and how their config differs: `other` needs a CPU of 2011, `ids` has no tokenizer, `profiled` was
# compiled with profiling.
MODELS: dict[str, dict[str, Any]] = {
    "toy": {},
    "other": {"cpu_features": ["xop", "fma4"]},
    "ids": {"vocab_file": None, "end_ids": [END]},
    "profiled": {},
}


@cache
def programs() -> Path:
    """The folder with the programs run-NAME; they are kept with the build that is tested."""
    if given := os.environ.get("BUDDY_BUILD_DIR"):
        folder = Path(given) / "toy-model"
    else:
        folder = Path(tempfile.mkdtemp(prefix="toy-model-"))
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # ctest runs several test files at once
        return build_programs(folder)


def build_programs(folder: Path) -> Path:
    """Builds run-NAME for each of MODELS; gives the folder with the programs."""
    headers = folder / "headers"
    headers.mkdir(parents=True, exist_ok=True)
    for name, changes in MODELS.items():
        header, text = headers / f"{name}_config.h", render_config(name, **changes)
        if not header.exists() or header.read_text(encoding="utf-8") != text:
            header.write_text(text, encoding="utf-8")
    build = folder / "build"
    source = Path(__file__).with_name("toy-model")
    models = ";".join(MODELS)
    for command in (
        ["cmake", "-G", "Ninja", "-S", source, "-B", build, f"-DHEADERS={headers}", f"-DMODELS={models}"],
        ["cmake", "--build", build, "--parallel", "2"],
    ):
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return build / "bin"


def toy_spec(add_bos: bool = False) -> TokenizerSpec:
    """One token for each byte; <|start|>, <|end|> and <|bos|> are special, <|end|> ends an answer."""
    special = {START: "<|start|>", END: "<|end|>", BOS: "<|bos|>"}
    tokens = [bytes([byte]) for byte in range(256)] + [text.encode() for text in special.values()]
    padding = VOCAB - len(tokens)
    return TokenizerSpec(
        kind=TokenizerKind.BYTE_LEVEL_BPE,
        tokens=tokens + [b""] * padding,
        types=[TokenType.NORMAL] * 256 + [TokenType.CONTROL] * 3 + [TokenType.UNUSED] * padding,
        in_model=[True] * 256 + [False] * (VOCAB - 256),
        merges=[],
        added=[AddedToken(index, text, special=True) for index, text in special.items()],
        steps=[],
        bos_id=BOS,
        eos_id=END,
        add_bos=add_bos,
        end_ids=[END],
    )


def random_table(seed: int = 0) -> Floats:
    """(last token, next token): logits that make printable letters likely and the end token rare."""
    table = np.random.default_rng(seed).normal(0, 2, (VOCAB, VOCAB)).astype(np.float32)
    table[:, ord("a") : ord("z") + 1] += 6
    table[:, 256:] -= 50
    return table


def follow(table: Floats, *texts: str | Sequence[int]) -> Floats:
    """Makes the table lead along each text, byte by byte."""
    for text in texts:
        ids = list(text.encode()) if isinstance(text, str) else list(text)
        for before, after in itertools.pairwise(ids):
            table[before, after] = 200
    return table


def toy_logits(table: Floats, ids: Sequence[int]) -> Floats:
    """What the toy gives for the last of `ids`: shape (vocabulary)."""
    total = sum(token * (position + 1) for position, token in enumerate(ids))
    noise = ((31 * total + 17 * np.arange(VOCAB)) % 97).astype(np.float32) / np.float32(97)
    logits: Floats = table[ids[-1]] + noise
    return logits


def greedy(table: Floats, prompt: Sequence[int], count: int) -> list[int]:
    """The ids that greedy generation must give, the end token left out."""
    ids = list(prompt)
    for _ in range(count):
        token = int(np.argmax(toy_logits(table, ids)))
        if token == END:
            break
        ids.append(token)
    return ids[len(prompt) :]


def template_ids(messages: list[tuple[str, str]], template: str = CHAT_TEMPLATE) -> list[int]:
    """The prompt of (role, content): special spellings count in the template only, not in what was said."""
    marks = {"<|start|>": "\ue000", "<|end|>": "\ue001"}
    form = template
    for spelling, mark in marks.items():
        form = form.replace(spelling, mark)
    turns = [{"role": role, "content": content} for role, content in messages]
    text = render_jinja_template([turns], chat_template=form, add_generation_prompt=True)[0][0]
    ids: list[int] = []
    for character in text:
        ids += {"\ue000": [START], "\ue001": [END]}.get(character) or list(character.encode())
    return ids


def write_model(
    folder: Path,
    table: Floats,
    *,
    delay_ms: float = 0,
    add_bos: bool = False,
    vocab: bool = True,
    template: str | None = CHAT_TEMPLATE,
    abi: str = ABI,
    vocab_model_id: str = MODEL_ID,
) -> Path:
    """Writes toy.weights.safetensors and toy.vocab; gives the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    delay = np.array([delay_ms], dtype=np.float32)
    tensors = [
        PackedTensor("table", "F32", (VOCAB, VOCAB), None, lambda: table),
        PackedTensor("delay", "F32", (1,), None, lambda: delay),
    ]
    metadata = WeightsMetadata(name="toy", abi=abi, dtype="f32", target="toy-target", exporter="0.1.0")
    write_weights(folder / "toy.weights.safetensors", WeightsLayout(tensors), metadata, lambda _: MODEL_ID)
    if vocab:
        spec = toy_spec(add_bos)
        chat = reduce_chat_template(template, {}) if template else None
        write_vocab(folder / "toy.vocab", spec, abi=ABI, model_id=vocab_model_id, chat=chat)
    return folder


@dataclass(frozen=True)
class Run:
    """A finished run."""

    code: int
    stdout: bytes
    stderr: str

    @property
    def text(self) -> str:
        """Standard output as text."""
        return self.stdout.decode()

    @property
    def json(self) -> dict[str, Any]:
        """The one object on standard output."""
        assert self.code == 0, self.stderr
        result: dict[str, Any] = json.loads(self.stdout)
        return result

    def fails(self, code: int, *parts: str) -> None:
        """Asserts a failure with one sentence on standard error that holds all `parts`, and nothing else."""
        assert self.code == code, (self.code, self.stdout, self.stderr)
        assert self.stdout == b""
        assert self.stderr.startswith("error: ") and self.stderr.count("\n") == 1, self.stderr
        for part in parts:
            assert part in self.stderr, self.stderr


@dataclass(frozen=True)
class Program:
    """A built program and the folder of its model."""

    path: Path
    model: Path

    def command(self, *arguments: str | Path) -> list[str]:
        return [str(self.path), "-m", str(self.model), *map(str, arguments)]

    def run(
        self, *arguments: str | Path | bytes, stdin: bytes = b"", env: Mapping[str, str] | None = None, **options: Any
    ) -> Run:
        command: list[str | bytes] = [*self.command(), *(a if isinstance(a, bytes) else str(a) for a in arguments)]
        done = subprocess.run(
            command,
            input=stdin,
            capture_output=True,
            timeout=60,
            check=False,
            env=os.environ | env if env else None,
            **options,
        )
        return Run(done.returncode, done.stdout, done.stderr.decode())
