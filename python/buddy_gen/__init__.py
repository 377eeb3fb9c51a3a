"""buddy-gen: an ahead-of-time compiler from PyTorch language models to native programs."""
