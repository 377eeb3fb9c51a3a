"""How well a build predicts a text: ``buddy eval``."""
