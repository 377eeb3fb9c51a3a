"""The benchmark: our program and its peers, as shares of what the machine can do (see benchmarks/README.md)."""
