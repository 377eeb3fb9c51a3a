"""Tokenizers and chat templates, from a model's own files to NAME.vocab."""

from buddy_gen.tokenizers.chat import ChatTemplate, ChatTemplateError, reduce_chat_template
from buddy_gen.tokenizers.gguf_tokenizer import read_gguf_tokenizer
from buddy_gen.tokenizers.loading import load_chat_template, load_tokenizer_spec
from buddy_gen.tokenizers.sentencepiece_model import read_sentencepiece_model
from buddy_gen.tokenizers.spec import TokenizerSpec, UnsupportedTokenizerError
from buddy_gen.tokenizers.tekken import read_tekken
from buddy_gen.tokenizers.tokenizer_json import read_tokenizer_json
from buddy_gen.tokenizers.vocab_file import vocab_digest, write_vocab

__all__ = [
    "ChatTemplate",
    "ChatTemplateError",
    "TokenizerSpec",
    "UnsupportedTokenizerError",
    "load_chat_template",
    "load_tokenizer_spec",
    "read_gguf_tokenizer",
    "read_sentencepiece_model",
    "read_tekken",
    "read_tokenizer_json",
    "reduce_chat_template",
    "vocab_digest",
    "write_vocab",
]
