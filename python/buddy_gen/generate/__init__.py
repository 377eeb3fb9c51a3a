"""The generator that CMake calls: a model in, the sources of its native build out."""
