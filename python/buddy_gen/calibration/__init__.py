"""Weights of 4 bits whose rounding a text has shown how to make up for: docs/quantization.md, "Calibration"."""
