"""`buddy serve`: an OpenAI-compatible server around a compiled model.

HTTP (`app`), requests (`parameters`), answers (`responses`) and the queue (`scheduler`) know the model as an `Engine`;
`library` is the one that calls lib<NAME>.so.
"""
