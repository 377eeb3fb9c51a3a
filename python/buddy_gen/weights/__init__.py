"""Reading checkpoints tensor by tensor and writing the packed weights file."""
