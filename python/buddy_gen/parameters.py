"""Which parameters a model's graphs read, in which order they are stored, and in which layout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

import torch
from torch import fx

from buddy_gen.capture import CapturedGraph, Parameter
from buddy_gen.errors import BuddyError
from buddy_gen.transforms.layers import LayerLoop, Unit
from buddy_gen.weights.formats import F32, Format

_LINEAR = torch.ops.aten.linear.default
_EMBEDDING = torch.ops.aten.embedding.default

SAFETENSORS_DTYPES = {
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
}


class Role(Enum):
    """What the graphs do with a parameter."""

    LINEAR = "the weight of linear layers"
    TABLE = "the table of an embedding"
    BOTH = "the weight of linear layers and the table of an embedding"
    OTHER = "anything else"


@dataclass(frozen=True)
class StoredParameter:
    """A parameter or buffer as the weights file holds it.

    Attributes:
        name: Qualified name in the model.
        shape: Its logical shape.
        dtype: The dtype that the graph reads.
        role: What the graphs do with it.
        format: How its numbers are stored (`buddy_gen.transforms.quantization`).
        activation_bits: Integers of so many bits (8, 16) are the activations of its products; None: f32.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    role: Role
    format: Format = F32
    activation_bits: int | None = None

    @property
    def panels(self) -> bool:
        """Whether it is stored in panels, of floats or of blocks (see docs/architecture.md)."""
        return self.role in (Role.LINEAR, Role.BOTH) or self.format.in_blocks


def layer_parameter(loop: LayerLoop, index: int, name: str) -> str:
    """The qualified name of layer `index` (in its list) for a name relative to the layer."""
    return f"{loop.run.path}.{index}.{name}"


def _role(node: fx.Node) -> Role:
    """What a placeholder is to its users: a weight of linear layers, a table of embeddings, both, or something else."""

    def is_weight(user: fx.Node) -> bool:
        return user.target is _LINEAR and user.args[1] is node and user.args[0] is not node

    def is_table(user: fx.Node) -> bool:
        return user.target is _EMBEDDING and user.args[0] is node

    users = list(node.users)
    weights, tables = sum(map(is_weight, users)), sum(map(is_table, users))
    if not users or weights + tables < len(users):
        return Role.OTHER
    if weights and tables:
        return Role.BOTH
    return Role.LINEAR if weights else Role.TABLE


def _stored(name: str, node: fx.Node) -> StoredParameter:
    value = node.meta["val"]
    if not all(isinstance(size, int) for size in value.shape):
        raise BuddyError(f"the parameter '{name}' has a dynamic shape")
    if value.dtype not in SAFETENSORS_DTYPES:
        raise BuddyError(f"the parameter '{name}' is of {value.dtype}, which is not supported yet")
    return StoredParameter(name, tuple(int(size) for size in value.shape), value.dtype, _role(node))


def _of_unit(captured: CapturedGraph, unit: Unit) -> Iterator[StoredParameter]:
    if isinstance(unit, fx.Node):
        for node in unit.all_input_nodes:
            binding = captured.bindings.get(node.name)
            if isinstance(binding, Parameter):
                yield _stored(binding.name, node)
        return
    for operand in unit.layer.operands:
        if operand.role == "shared":
            yield _stored(operand.name, operand.node)
    for index in range(unit.run.first, unit.run.first + unit.run.count):
        for operand in unit.layer.operands:
            if operand.role == "parameter":
                yield _stored(layer_parameter(unit, index, operand.name), operand.node)


def collect_parameters(graphs: Sequence[tuple[CapturedGraph, Sequence[Unit]]]) -> list[StoredParameter]:
    """Every parameter that some entry point reads, once, in the order in which the first one reads them.

    Args:
        graphs: Captured entry points with their schedules.

    Raises:
        BuddyError: Two entry points would need the same parameter in different layouts.
    """
    found: dict[str, StoredParameter] = {}
    for captured, units in graphs:
        for unit in units:
            for stored in _of_unit(captured, unit):
                if found.setdefault(stored.name, stored) != stored:
                    raise BuddyError(f"two entry points read the parameter '{stored.name}' in different ways")
    return list(found.values())
