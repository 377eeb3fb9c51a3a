"""What a user may choose of the frontend; read before anything slow is imported."""

DIALECTS = ("linalg", "tosa")
"""The dialects that lowering rules may belong to, in the default order of preference."""

DTYPES = ("f32",)
"""The element types of weights and arithmetic."""
