"""A Hugging Face folder: config.json, the weights, the tokenizer's files, the chat template."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import LlamaConfig

from buddy_gen.errors import BuddyError
from buddy_gen.models.description import ModelDescription, TokenizerFiles
from buddy_gen.models.llama import make_config, resolve_parameters, rope_parameters
from buddy_gen.weights.file_kind import FileKind, identify_file
from buddy_gen.weights.pickle_reader import PickleSource
from buddy_gen.weights.safetensors_reader import SafetensorsSource
from buddy_gen.weights.source import WeightSource

__all__ = ["open_huggingface", "read_json"]

# In transformers' own order of preference.
_WEIGHTS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
_ROPE_KEYS = ("rope_theta", "rope_scaling", "rope_parameters", "original_max_position_embeddings")


def open_huggingface(folder: Path, weights_file: Path | None = None) -> ModelDescription:
    """Describes the model in `folder`; `weights_file` names its weights where the usual names do not.

    Raises BuddyError for another architecture, an unsupported setting, damaged files, or tensors that do not fit.
    """
    config_file = folder / "config.json"
    raw = read_json(config_file)
    _check_architecture(raw, config_file)
    values = {key: value for key, value in raw.items() if key not in _ROPE_KEYS}
    values["rope_parameters"] = rope_parameters(raw, config_file)
    config = make_config(values, config_file)
    source = _open_weights(folder, weights_file)
    tied, weights = resolve_parameters(source, config, bool(config.tie_word_embeddings), config_file)
    tokenizer = _tokenizer_files(folder)
    settings = _optional_json(folder / "tokenizer_config.json")
    template, template_file = _chat_template(folder, settings)
    generation = _optional_json(folder / "generation_config.json")
    files = [config_file, *source.files(), *(tokenizer.files() if tokenizer is not None else [])]
    extra = (folder / "generation_config.json", folder / "tokenizer_config.json", template_file)
    files += [path for path in extra if path is not None and path.is_file() and path not in files]
    add_bos = settings.get("add_bos_token")
    return ModelDescription(
        name=_name(folder),
        config=config,
        tied_head=tied,
        weights=weights,
        tokenizer=tokenizer,
        chat_template=template,
        eos_token_ids=_eos_token_ids(generation, config),
        bos_token_id=_first_id(generation.get("bos_token_id"), config.bos_token_id),
        add_bos=add_bos if isinstance(add_bos, bool) else None,
        context_length=config.max_position_embeddings,
        files=files,
    )


def _name(folder: Path) -> str:
    """The folder's name; in the Hub's own cache (models--ORG--NAME/snapshots/HASH) the model's."""
    parts = folder.resolve().parts
    if len(parts) > 3 and parts[-2] == "snapshots" and parts[-3].startswith("models--"):
        return parts[-3].rsplit("--", 1)[-1]
    return parts[-1]


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in `path`. Raises BuddyError when it is missing, damaged or no object."""
    kind = identify_file(path)
    if kind in (FileKind.EMPTY, FileKind.HTML, FileKind.LFS_POINTER):
        raise BuddyError(f"{path} should be JSON, but it is {kind.value}.")
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise BuddyError(f"{path} cannot be read: {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:
        raise BuddyError(f"{path} is not valid JSON: {error}.") from None
    if not isinstance(content, dict):
        raise BuddyError(f"{path} should hold a JSON object.")
    return content


def _optional_json(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _check_architecture(raw: Mapping[str, Any], where: Path) -> None:
    named = raw.get("architectures") or []
    kind = raw.get("model_type", "llama" if "LlamaForCausalLM" in named else None)
    if kind is None and not named:
        raise BuddyError(f"{where} names no architecture (model_type, architectures); it is no model's config.")
    if kind != "llama" or (named and "LlamaForCausalLM" not in named):
        found = f"{', '.join(str(name) for name in named) or 'unnamed'} (model_type {kind})"
        raise BuddyError(f"{where}: the architecture {found} is not supported; LlamaForCausalLM (model_type llama) is.")
    quantization = raw.get("quantization_config")
    if quantization:
        method = quantization.get("quant_method", "unknown") if isinstance(quantization, Mapping) else "unknown"
        raise BuddyError(
            f"{where}: weights quantised with {method} are not supported; use the f32, f16 or bf16 model, or a GGUF."
        )


def _open_weights(folder: Path, weights_file: Path | None) -> WeightSource:
    path = weights_file or next((folder / name for name in _WEIGHTS if (folder / name).is_file()), None)
    if path is None:
        found = sorted(
            one for one in folder.iterdir() if one.suffix in (".safetensors", ".bin", ".pth", ".pt") and one.is_file()
        )
        if not found:
            raise BuddyError(f"{folder} has no weights: {_WEIGHTS[0]} is expected, or {_WEIGHTS[1]} with its shards.")
        if len(found) > 1:
            raise BuddyError(
                f"{folder} has several weights files and no index ({', '.join(one.name for one in found[:8])}); "
                f"download {_WEIGHTS[1]} too, or name one file."
            )
        path = found[0]
    kind = identify_file(path)
    if kind in (FileKind.TORCH_ZIP, FileKind.TORCH_LEGACY) or path.name == "pytorch_model.bin.index.json":
        return PickleSource(path)
    if kind.is_tokenizer or kind is FileKind.GGUF:
        raise BuddyError(f"{path} should be a safetensors weights file, but it is {kind.value}.")
    if path.suffix in (".bin", ".pth", ".pt"):
        return PickleSource(path)
    return SafetensorsSource(path)


def _tokenizer_files(folder: Path) -> TokenizerFiles | None:
    def present(name: str) -> Path | None:
        return folder / name if (folder / name).is_file() else None

    tokenizer_json, tokenizer_model = present("tokenizer.json"), present("tokenizer.model")
    if tokenizer_json is None and tokenizer_model is None:
        return None
    for path in (tokenizer_json, tokenizer_model):
        kind = identify_file(path) if path is not None else FileKind.TOKENIZER_JSON
        if kind.is_weights or kind in (FileKind.HTML, FileKind.EMPTY, FileKind.LFS_POINTER, FileKind.CONFIG_JSON):
            raise BuddyError(f"{path} should be a tokenizer, but it is {kind.value}.")
    return TokenizerFiles(
        tokenizer_json=tokenizer_json,
        tokenizer_model=tokenizer_model,
        tokenizer_config=present("tokenizer_config.json"),
        special_tokens_map=present("special_tokens_map.json"),
        added_tokens=present("added_tokens.json"),
        generation_config=present("generation_config.json"),
    )


def _chat_template(folder: Path, settings: Mapping[str, Any]) -> tuple[str | None, Path | None]:
    """chat_template.jinja wins over tokenizer_config.json's own, as in transformers."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8"), path
        except (OSError, UnicodeDecodeError) as error:
            raise BuddyError(f"{path} cannot be read as text: {error}.") from None
    template = settings.get("chat_template")
    if isinstance(template, list):  # several, by name
        named = {one.get("name"): one.get("template") for one in template if isinstance(one, Mapping)}
        template = named.get("default")
    return (template if isinstance(template, str) else None), None


def _eos_token_ids(generation: Mapping[str, Any], config: LlamaConfig) -> list[int]:
    """What generation_config.json and the config declare; ids outside the vocabulary (-1 for none) never come up."""
    ids: list[Any] = []
    for declared in (generation.get("eos_token_id"), config.eos_token_id):
        ids += declared if isinstance(declared, list) else [declared]
    return list(dict.fromkeys(token for token in ids if type(token) is int and 0 <= token < config.vocab_size))


def _first_id(*candidates: Any) -> int | None:
    return next((token for token in candidates if type(token) is int), None)
