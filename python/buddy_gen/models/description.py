"""What the compiler knows of a model before it captures it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from transformers import LlamaConfig

from buddy_gen.models.llama import rotary_inv_freq
from buddy_gen.weights.source import FloatArray, WeightSource

__all__ = ["ModelDescription", "TokenizerFiles"]


@dataclass(frozen=True)
class TokenizerFiles:
    """The files that define a tokenizer; each is None when the model does not have it."""

    gguf: Path | None = None
    tokenizer_json: Path | None = None
    tokenizer_model: Path | None = None  # SentencePiece
    tokenizer_config: Path | None = None
    special_tokens_map: Path | None = None
    added_tokens: Path | None = None
    generation_config: Path | None = None

    @property
    def main(self) -> Path:
        """The file that holds the vocabulary; tokenizer.json before tokenizer.model, as transformers prefers."""
        found = self.gguf or self.tokenizer_json or self.tokenizer_model
        assert found is not None, "a TokenizerFiles without a vocabulary is never made"
        return found

    def files(self) -> list[Path]:
        every = (
            self.gguf,
            self.tokenizer_json,
            self.tokenizer_model,
            self.tokenizer_config,
            self.special_tokens_map,
            self.added_tokens,
            self.generation_config,
        )
        return [path for path in every if path is not None]


@dataclass(frozen=True)
class ModelDescription:
    """A checked model: its tensors are exactly the parameters that its config asks for."""

    name: str
    config: LlamaConfig
    tied_head: bool
    """Whether head and embedding are one matrix; then `weights` has no `lm_head.weight`."""
    weights: WeightSource
    tokenizer: TokenizerFiles | None
    chat_template: str | None
    """Jinja source of the default template."""
    eos_token_ids: list[int]
    """Every id that ends a text, in the order declared; may be empty."""
    bos_token_id: int | None
    add_bos: bool | None
    """Whether a prompt begins with BOS by the model's own setting; None where it does not say."""
    context_length: int
    files: list[Path] = field(default_factory=list)
    """Every file read: what a cache key depends on."""
    inv_freq_override: FloatArray | None = None
    """[head_dim / 2]: rotary inverse frequencies that no config expresses (a GGUF with factors of its own)."""

    def rotary(self) -> tuple[FloatArray, float]:
        """The rotary inverse frequencies [head_dim / 2] and the factor on cos and sin, override included."""
        inv_freq, scaling = rotary_inv_freq(self.config)
        return (inv_freq if self.inv_freq_override is None else np.asarray(self.inv_freq_override)), scaling
