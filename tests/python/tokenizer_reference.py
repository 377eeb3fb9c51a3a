"""Reference tokenizers, made with the `tokenizers` library, and text to compare them on."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, processors, trainers
from tokenizers import pre_tokenizers as pre

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_MODERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3 = _MODERN % "{1,3}"
QWEN2 = _MODERN % ""


def _split(pattern: str) -> Any:
    return pre.Split(Regex(pattern), behavior="isolated", invert=False)


def _byte_level(add_prefix_space: bool = False, use_regex: bool = False) -> Any:
    return pre.ByteLevel(add_prefix_space=add_prefix_space, use_regex=use_regex)


PRE_TOKENIZERS: dict[str, Any] = {
    "gpt2": _byte_level(use_regex=True),
    "gpt2-split": pre.Sequence([_split(GPT2), _byte_level()]),
    "digits-alone": pre.Sequence([pre.Digits(individual_digits=True), _byte_level(use_regex=True)]),
    "digit-runs": pre.Sequence([pre.Digits(individual_digits=False), _byte_level(use_regex=True)]),
    "llama3": pre.Sequence([_split(LLAMA3), _byte_level()]),
    "qwen2-regex": pre.Sequence([_split(QWEN2), _byte_level()]),
    "numbers-up-to-3": pre.Sequence([_split(r"\p{N}{1,3}"), _byte_level(use_regex=True)]),
    "prefix-space": _byte_level(add_prefix_space=True, use_regex=True),
    "digits-prefix-space": pre.Sequence([pre.Digits(True), _byte_level(add_prefix_space=True, use_regex=True)]),
}

ADDED = [
    AddedToken("<s>", special=True, normalized=False),
    AddedToken("</s>", special=True, normalized=False),
    AddedToken("<|im_start|>", special=True, normalized=False),
    AddedToken("<|im_end|>", special=True, normalized=False),
    AddedToken("<|im_end|>\n", special=True, normalized=False),
    AddedToken("<mask>", special=True, normalized=False, lstrip=True),
    AddedToken("<sep>", special=True, normalized=True, rstrip=True),
    AddedToken("<tool>", special=False, normalized=True),
    AddedToken("im_end", special=False, normalized=False),
    AddedToken("word", special=False, normalized=True, single_word=True),
    AddedToken("  ", special=False, normalized=False),
    AddedToken("é", special=False, normalized=True, rstrip=True, lstrip=True),
    AddedToken("▁x", special=False, normalized=True),
]

# The same paragraph's worth of everyday text in many scripts.
TEXTS = [
    "The quick brown fox jumps over the lazy dog. It's 3.14159 metres; they're sure that I'LL see 12,345 of them!",
    "Ein naïver Bär aß müde Äpfel im Café — für 5 € pro Stück, „wirklich“?",
    "Съешь ещё этих мягких французских булок, да выпей же чаю. Всего 42 рубля.",
    "Ο γρήγορος αλεπού πηδάει πάνω από το τεμπέλικο σκυλί, 15:30.",
    "نص حكيم له سر قاطع وذو شأن عظيم مكتوب على ثوب أخضر ومغلف بجلد أزرق ١٢٣",
    "דג סקרן שט בים מאוכזב ולפתע מצא חברה, 7 ימים",
    "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश १२३",
    "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า ๑๒๓",
    "天地玄黄，宇宙洪荒。日月盈昃，辰宿列张。共有一千二百三十四个字。",
    "いろはにほへと ちりぬるを。カタカナと漢字、１２３。",
    "다람쥐 헌 쳇바퀴에 타고파. 키스의 고유조건은 입술끼리 만나야 하고",
    "ქართული ენა · հայերեն · አማርኛ · ភាសាខ្មែរ · தமிழ் ௧௨௩ · ᠮᠣᠩᠭᠣᠯ",
    "👩‍👩‍👧‍👦 🇩🇪 🏳️‍🌈 e\u0301 ﬁ ſ'ſ ½ Ⅷ ① 𝟘𝟙 𝒜 𠮷 \u200b\u00a0\u3000|",
    "def f(x: int) -> str:\n\treturn f'{x!r:>10}'  # why?\n\n\nclass A(B):\r\n    pass\n",
    '{"a": [1, 2.5e-3, null], "b": "\\u00e9\\n"}; for(i=0;i<10;++i){p->q[i]+=0x1F;} // done',
    "12345 3.14159 They're I'LL it'S we'Ve a\n\n\nb x\t\ty trailing   ",
    "   leading and   doubled  inner  spaces \n  \n\t\n   ",
    "",
    " ",
    "  ",
    "\n",
    "\r\n\r\n",
    "'",
    "''s 's ' s 'll'd'",
    "naïve café 😀",
    " word word, words <tool>word</tool> <mask>  x <sep>  y<s>z",
    "<|im_start|>user\nHi</s> <|im_end|>\n<|im_end|> im_end",
]


def every_class_border() -> str:
    """The first and last code points of every run of one class, each beside letters, digits and spaces."""
    table = Path(__file__).parents[2] / "cpp" / "containers" / "UnicodeTables.inc"  # another test: it is up to date
    runs = table.read_text("utf-8").partition("classRuns[] = {")[2].partition("}")[0]
    starts = [int(entry, 16) >> 8 for entry in runs.replace(",", " ").split()]
    borders = sorted({code for start in starts for code in (start - 1, start) if code >= 0} - {*range(0xD800, 0xE000)})
    return "".join(f"a{chr(code)}1{chr(code)} {chr(code)}{chr(code)}." for code in borders)


def train(kind: str, *, ignore_merges: bool = False, size: int = 1500, bos: bool = False) -> Tokenizer:
    """A small byte-level BPE tokenizer with one of PRE_TOKENIZERS and with ADDED."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = PRE_TOKENIZERS[kind]
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    corpus = [*TEXTS, *(source.read_text("utf-8") for source in sorted(Path(__file__).parent.glob("test_*.py")))]
    tokenizer.train_from_iterator(corpus, trainer)
    if ignore_merges:  # leave tokens that no merge gives
        content = json.loads(tokenizer.to_str())
        content["model"]["merges"] = content["model"]["merges"][::2]
        tokenizer = Tokenizer.from_str(json.dumps(content))
    return _completed(tokenizer, bos)


def of_all_pairs(kind: str, *, bos: bool = False) -> Tokenizer:
    """A tokenizer in which any two bytes merge, in a random order: every border between pre-tokens shows in the ids.

    In a trained one most borders do not, since few merges cross them.
    """
    alphabet = sorted(pre.ByteLevel.alphabet())
    merges = [(left, right) for left in alphabet for right in alphabet]
    random.Random(12).shuffle(merges)
    vocabulary = {token: i for i, token in enumerate([*alphabet, *(left + right for left, right in merges)])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = PRE_TOKENIZERS[kind]
    tokenizer.decoder = decoders.ByteLevel()
    return _completed(tokenizer, bos)


def _completed(tokenizer: Tokenizer, bos: bool) -> Tokenizer:
    tokenizer.add_tokens(ADDED)
    if bos:
        first = tokenizer.token_to_id("<s>")
        template = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", first)])
        tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    return tokenizer


def from_gguf(metadata: dict[str, Any]) -> Tokenizer:
    """The reference for SmolLM2: the file's vocabulary and merges; digits alone, then GPT-2's byte level."""
    tokens = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = PRE_TOKENIZERS["digits-alone"]
    tokenizer.decoder = decoders.ByteLevel()
    control = [t for t, kind in zip(tokens, metadata["tokenizer.ggml.token_type"], strict=True) if kind == 3]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    return tokenizer


def encode(tokenizer: Tokenizer, text: str, parse_special: bool, add_special: bool = False) -> list[int]:
    tokenizer.encode_special_tokens = not parse_special
    ids: list[int] = tokenizer.encode(text, add_special_tokens=add_special).ids
    return ids


_PIECES = [
    *(token.content for token in ADDED),
    *" \t\n\r\x0b\x0c\x00\x1c\x85\xa0\u2003\u2028\u3000\u200b",
    *"0123456789½²٣१Ⅷ𝟘",
    *("'s", "'S", "'ll", "'LL", "'Re", "'ſ", "'", "’s", "a", "The", "word", "_", "-", "!?", "e\u0301", "\u0301", "é"),
    *("😀", "👩‍👧", "你好", "ß", "ſ", "K", "İ", "ﬁ", "\U0010ffff", "\ufeff", "\ufffd", "  ", "\n\n", " \n "),
]


def random_texts(seed: int, count: int) -> Iterator[str]:
    """Random Unicode text that is dense in what pre-tokenizers and added tokens treat specially."""
    chosen = random.Random(seed)

    def piece() -> str:
        kind = chosen.random()
        if kind < 0.5:
            return chosen.choice(_PIECES)
        if kind < 0.7:
            return chr(chosen.randrange(0x20, 0x7F))
        code = chosen.randrange(0x80, 0x3100) if kind < 0.85 else chosen.randrange(0x3100, 0x110000)
        return "?" if 0xD800 <= code < 0xE000 else chr(code)

    for _ in range(count):
        yield "".join(piece() for _ in range(chosen.randrange(25)))
