"""Rewrites of the captured graph before it becomes MLIR."""
