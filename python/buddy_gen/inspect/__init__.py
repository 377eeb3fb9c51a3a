"""What stands in a weights file: ``buddy inspect``."""
