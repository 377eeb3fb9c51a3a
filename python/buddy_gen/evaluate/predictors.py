"""What gives logits for a window of tokens: a built program, or eager PyTorch."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from buddy_gen.errors import BuddyError

__all__ = ["BuiltModel", "EagerModel", "Predictor"]

PROGRAM = "buddy-llama-run"
_LONGEST_ARGUMENT = 120_000  # Linux takes 131072 bytes
Rows = npt.NDArray[Any]


class Predictor(Protocol):
    """A model that predicts."""

    method: str
    """How its logits are made, for the report."""

    def logits(self, ids: Sequence[int]) -> Rows:
        """The logits behind every token of a window: (len(ids), vocabulary)."""


class BuiltModel:
    """A folder with a program, whose option --dump-logits does the work.

    A program with the entry point score gives all logits of a window at once; any other one is fed token by token.
    """

    def __init__(self, folder: Path, context: int, threads: int = 0) -> None:
        """Raises BuddyError when the folder has no program that runs."""
        self._program = folder / PROGRAM
        if not self._program.is_file():
            raise BuddyError(f"{folder} has no program {PROGRAM}; give a folder made by `buddy build`.")
        self._scratch = tempfile.TemporaryDirectory(prefix="buddy-eval-")
        self._options = ["-c", str(context), *(["-t", str(threads)] if threads else [])]
        self._batch = context
        rows = self._run([0, 0])
        self.method = "score" if len(rows) == 2 else "decode"
        if self.method == "decode":
            self._batch = 1

    def logits(self, ids: Sequence[int]) -> Rows:
        rows = self._run(ids)
        if len(rows) != len(ids):
            raise BuddyError(f"{self._program} gave {len(rows)} rows of logits for {len(ids)} tokens; build it again.")
        return rows

    def _run(self, ids: Sequence[int]) -> Rows:
        """The rows that the program dumps, mapped; the next call takes the file away."""
        path = Path(self._scratch.name) / "logits.npy"
        path.unlink(missing_ok=True)
        text = ",".join(map(str, ids))
        if len(text) > _LONGEST_ARGUMENT:
            raise BuddyError(f"a window of {len(ids)} tokens is too long for a command line; use a smaller --context.")
        command = [str(self._program), "--ids", text, "-n", "0", "--dump-logits", str(path), *self._options]
        try:
            done = subprocess.run(
                [*command, "--ubatch-size", str(self._batch)],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
            )
        except OSError as error:
            raise BuddyError(f"{self._program} cannot be run ({error.strerror}).") from error
        if done.returncode != 0:
            said = done.stderr.strip().splitlines()
            reason = said[-1].removeprefix("error: ") if said else f"exit code {done.returncode}"
            raise BuddyError(f"{self._program} failed: {reason}")
        try:
            rows: Rows = np.load(path, mmap_mode="r")
        except (OSError, ValueError) as error:
            raise BuddyError(f"{self._program} wrote no logits that can be read ({error}).") from None
        return rows


class EagerModel:
    """A model's float32 weights in Hugging Face's own eager code."""

    method = "eager PyTorch"

    def __init__(self, model: str) -> None:
        """Raises BuddyError when `model` is no model."""
        import torch
        from transformers import LlamaForCausalLM

        from buddy_gen.models import open_model

        description = open_model(model)
        description.config._attn_implementation = "eager"
        with torch.device("meta"):
            self._model: Any = LlamaForCausalLM(description.config)
        self._model.to_empty(device="cpu")
        rotary = torch.from_numpy(np.array(description.rotary()[0], np.float32))
        self._model.model.rotary_emb.inv_freq = rotary
        self._model.model.rotary_emb.original_inv_freq = rotary.clone()
        parameters = dict(self._model.named_parameters())
        with torch.no_grad():
            for name in description.weights.names():
                if name in parameters:
                    parameters[name].copy_(torch.from_numpy(description.weights.read(name)))
        self._model.tie_weights()
        self._model.train(False)
        self._torch = torch

    def logits(self, ids: Sequence[int]) -> Rows:
        with self._torch.no_grad():
            rows: Rows = self._model(self._torch.tensor([list(ids)]), use_cache=False).logits[0].numpy()
        return rows
