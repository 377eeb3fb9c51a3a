"""Layers are merged exactly when they compute the same function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaModel

from buddy_gen.capture import CapturedGraph, capture_llama
from buddy_gen.importer import CacheShape, ImportedModule, import_graph
from buddy_gen.parameters import StoredParameter, collect_parameters
from buddy_gen.target import TARGETS
from buddy_gen.transforms.layers import LayerLoop, NotIsomorphicError, module_key, schedule
from buddy_gen.weights.packed import PackedTensor, WeightsLayout, panel_shape

pytestmark = pytest.mark.slow

LAYERS = 6
Customise = Callable[[LlamaForCausalLM], None]


def _config(**changes: Any) -> LlamaConfig:
    sizes = {
        "vocab_size": 53,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
    }
    return LlamaConfig(**{**sizes, **changes})


def _capture(entry: str = "decode", customise: Customise | None = None, **options: Any) -> CapturedGraph:
    return capture_llama(_config(), [entry], customise, **options)[0]


def _loops(captured: CapturedGraph) -> list[tuple[int, int]]:
    return [(unit.run.first, unit.run.count) for unit in schedule(captured) if isinstance(unit, LayerLoop)]


def _parameters(captured: CapturedGraph) -> list[StoredParameter]:
    return collect_parameters([(captured, schedule(captured))])


def _import(captured: CapturedGraph, layers: int = LAYERS) -> ImportedModule:
    units, parameters = schedule(captured), _parameters(captured)
    target = TARGETS["x86-64-v3"]

    def packed(stored: Any) -> PackedTensor:
        shape = panel_shape(stored.shape, target.panel) if stored.panels else stored.shape
        return PackedTensor(stored.name, "F32", shape, None, lambda: None)  # type: ignore[arg-type,return-value]

    layout = WeightsLayout([packed(stored) for stored in parameters])
    cache = CacheShape(layers, 2, 8, torch.float32)
    return import_graph(captured, units, "m", parameters=parameters, offsets=layout, target=target, cache=cache)


def test_equal_layers_become_one_loop() -> None:
    captured = _capture()
    assert _loops(captured) == [(0, LAYERS)]
    assert _import(captured).layer_functions == 1


@pytest.mark.parametrize("entry", ["prefill", "decode", "score"])
def test_representatives_give_the_module_of_a_whole_capture(entry: str) -> None:
    short, whole = (_import(_capture(entry, merge_layers=merge)) for merge in (True, False))
    assert _without_locations(short.text) == _without_locations(whole.text)


def _without_locations(text: str) -> list[str]:
    return [line.split(" loc(")[0] for line in text.splitlines() if not line.startswith("#loc")]


def _other_epsilon(model: LlamaForCausalLM) -> None:
    model.model.layers[3].input_layernorm.variance_epsilon = 3e-3


def _bias(model: LlamaForCausalLM) -> None:
    old = model.model.layers[3].mlp.up_proj
    model.model.layers[3].mlp.up_proj = nn.Linear(old.in_features, old.out_features, bias=True)


def _other_activation(model: LlamaForCausalLM) -> None:
    model.model.layers[3].mlp.act_fn = nn.Tanh()


def _other_scale(model: LlamaForCausalLM) -> None:
    model.model.layers[3].self_attn.scaling = 0.5


def _other_forward(model: LlamaForCausalLM) -> None:
    layer = model.model.layers[3].mlp
    original = layer.forward
    layer.forward = lambda x: original(x) * 2


def _hook(model: LlamaForCausalLM) -> None:
    model.model.layers[3].mlp.register_forward_hook(lambda module, args, output: output + 1)


@pytest.mark.parametrize("change", [_other_epsilon, _bias, _other_activation, _other_scale, _other_forward, _hook])
def test_a_layer_that_differs_is_not_merged(change: Customise) -> None:
    captured = _capture(customise=change)
    assert _loops(captured) == [(0, 3), (3, 1), (4, 2)]
    # The layers before and after are one function, the odd one is another.
    assert _import(captured).layer_functions == 2


def test_a_run_of_one_at_either_end() -> None:
    def change(model: LlamaForCausalLM) -> None:
        model.model.layers[0].input_layernorm.variance_epsilon = 1e-2
        model.model.layers[5].input_layernorm.variance_epsilon = 1e-2

    captured = _capture(customise=change)
    assert _loops(captured) == [(0, 1), (1, 4), (5, 1)]
    assert _import(captured).layer_functions == 2


def test_a_difference_that_only_the_graph_shows_is_found() -> None:
    """The module proof is switched off by telling it a lie: the graph proof must refuse alone."""
    captured = _capture(customise=_other_epsilon, merge_layers=False)
    run = captured.runs[0]
    lie = type(run)(run.path, 0, LAYERS, tuple(range(LAYERS)))
    with pytest.raises(NotIsomorphicError, match="add"):
        schedule(type(captured)(captured.entry, captured.graph, captured.bindings, (lie,), captured.prefix))


class _RenamedLayer(LlamaDecoderLayer):
    """A layer whose parts are registered under other names."""

    self_attn = property(lambda self: self._modules["zz"])
    mlp = property(lambda self: self._modules["aa"])


class _RenamedModel(LlamaModel):
    """A model whose list of layers is registered under another name."""

    layers = property(lambda self: self._modules["blocks"])


def _rename(model: LlamaForCausalLM) -> None:
    for layer in model.model.layers:
        layer._modules["zz"] = layer._modules.pop("self_attn")
        layer._modules["aa"] = layer._modules.pop("mlp")
        layer.__class__ = _RenamedLayer
    model.model._modules["blocks"] = model.model._modules.pop("layers")
    model.model.__class__ = _RenamedModel


@pytest.mark.parametrize("entry", ["prefill", "decode"])
def test_names_of_modules_do_not_matter(entry: str) -> None:
    captured = _capture(entry, customise=_rename)
    renamed, plain = _import(captured), _import(_capture(entry))
    assert any(stored.name.startswith("model.blocks.5.aa.") for stored in _parameters(captured))
    assert renamed.layer_functions == 1
    assert _without_locations(renamed.text) == _without_locations(plain.text)


def test_module_keys_tell_attributes_apart() -> None:
    def layer(value: Any) -> nn.Module:
        module = nn.Linear(3, 3)
        module.setting = value
        return module

    assert module_key(layer(1), 0) == module_key(layer(1), 1)
    for left, right in ((1, 2), (1, 1.0), (True, 1), ("a", "b"), ([1], [2]), ({"a": 1}, {"a": 2}), (None, 0)):
        assert module_key(layer(left), 0) != module_key(layer(right), 0)
    assert module_key(nn.Linear(3, 3), 0) != module_key(nn.Linear(3, 3, bias=False), 0)
    assert module_key(nn.Linear(3, 3), 0) != module_key(nn.Linear(3, 4), 0)


def test_import_time_does_not_grow_with_depth() -> None:
    shallow, deep = (capture_llama(_config(num_hidden_layers=depth), ["decode"])[0] for depth in (2, 64))
    assert len(deep.graph.nodes) == len(shallow.graph.nodes)
    assert _import(deep, 64).text.count("\n") <= _import(shallow, 2).text.count("\n") + 8
