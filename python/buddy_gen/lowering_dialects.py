"""The dialects that lowering rules may belong to, in the default order of preference."""

DIALECTS = ("linalg", "tosa")
