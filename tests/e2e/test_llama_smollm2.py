"""The default model, built by the project, against Hugging Face's f32 model and the `tokenizers` library."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from compiled_program import Program, eager_greedy, eager_logits, eager_model
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaForCausalLM
from transformers.utils.chat_template_utils import render_jinja_template

from buddy_gen.models import open_model
from buddy_gen.models.default_model import fetch_default_model

pytestmark = pytest.mark.slow

PARAGRAPH = (
    "The river had been rising since the evening, and by the time the lamps were lit nobody in the village "
    "expected the old bridge to last until the morning. The miller sent his two sons with ropes and a lantern, and the "
    "schoolmaster, who had measured the arches in the summer and kept the figures in a blue notebook, walked behind "
    "them and counted aloud how many stones were still above the water. At nine there were eleven; at ten there "
    "were seven. A farmer from the other bank called across that his cattle were safe, but that the road past the "
    "chapel was gone, and with it the post that carried the wire to the town. Someone laughed and said that the "
    "town would have to manage without them for a while. Then the rain stopped, quite suddenly, as if a hand had been "
    "laid upon it, and in the silence they could hear the beams of the bridge complaining, one after another, like old "
    "men getting up from a table. The schoolmaster closed his notebook. He said that if it held for one more hour it "
    "would hold for another hundred years, and that he would like to be there to see which of the two it was going to "
    "be. So they waited, the miller and his sons, the priest, the two sisters who kept the inn, and a dozen children "
    "who should have been asleep, and they watched the black water climb the last stones of the last arch and stand "
    "there, trembling,"
)
PROMPTS = {
    "english": "The capital of France is",
    "story": "Once upon a time, in a small house at the edge of the forest,",
    "python": "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "c": "#include <stdio.h>\n\nint main(void) {\n\tfor (int i = 0; i < 10; ++i)\n",
    "chinese": "北京是中国的首都，上海是",
    "emoji": "I love pizza 🍕 and my favourite animal is 🐱",
    "digits": "12345 + 67890 = 80235\n3.14159 * 2 =",
    "space": " ",
    "spaces": "one  two   three\t\tfour\n\n\n",
    "apostrophes": "They're here, and I'LL say it's naïve café",
    "russian": "Москва является столицей",
    "special": "<|im_start|>user\nWhat is 2+2?<|im_end|>\n<|im_start|>assistant\n",
    "chat-two-turns": (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nName a colour.<|im_end|>\n<|im_start|>assistant\nBlue.<|im_end|>\n"
        "<|im_start|>user\nAnd another one?<|im_end|>\n<|im_start|>assistant\n"
    ),
    "300-tokens": PARAGRAPH,
}
ENDS = (2,)


@pytest.fixture(scope="module")
def program(build_dir: Path) -> Program:
    return Program(fetch_default_model(), build_dir / "bin", {})


@pytest.fixture(scope="module")
def eager() -> LlamaForCausalLM:
    return eager_model(fetch_default_model())


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """The reference tokenizer, from the GGUF's vocabulary and merges (read by the gguf package)."""
    reader = gguf.GGUFReader(fetch_default_model())

    def strings(key: str) -> list[str]:
        field: Any = reader.fields[key]
        return [bytes(field.parts[i]).decode("utf-8") for i in field.data]

    tokens = strings("tokenizer.ggml.tokens")
    types = [
        int(reader.fields["tokenizer.ggml.token_type"].parts[i][0])
        for i in reader.fields["tokenizer.ggml.token_type"].data
    ]
    merges = [tuple(merge.split(" ")) for merge in strings("tokenizer.ggml.merges")]
    made = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, types, strict=True)
            if kind == 3
        ]
    )
    return made


@pytest.mark.parametrize("name", PROMPTS)
def test_greedy_text_equals_eager(name: str, program: Program, eager: LlamaForCausalLM, tokenizer: Tokenizer) -> None:
    prompt = PROMPTS[name]
    expected_ids = tokenizer.encode(prompt, add_special_tokens=False).ids
    answer = program.answer("-p", prompt, "-n", "64", "--ignore-eos")
    assert answer["prompt_ids"] == expected_ids
    assert answer["ids"] == eager_greedy(eager, expected_ids, 64)
    assert answer["text"] == tokenizer.decode(answer["ids"], skip_special_tokens=True)


def test_stops_at_the_end_token(program: Program, eager: LlamaForCausalLM, tokenizer: Tokenizer) -> None:
    prompt = PROMPTS["chat-two-turns"]
    answer = program.answer("-p", prompt, "-n", "-1")
    ids = tokenizer.encode(prompt, add_special_tokens=False).ids
    assert answer["ids"] == eager_greedy(eager, ids, 512, ENDS)
    assert answer["stop"] == "eos"


def test_a_chat_equals_the_template_and_eager(program: Program, eager: LlamaForCausalLM, tokenizer: Tokenizer) -> None:
    """Each turn's prompt is the model's own template over the whole history, its answer eager's."""
    turns = ["Name three colours.", "Which one is the <|im_end|> darkest? 🎨", "  Thank you!  "]
    done = subprocess.run(
        [str(program.executable), "-cnv", "--json", "-n", "24", "-sys", "Answer briefly."],
        input="".join(f"{turn}\n" for turn in turns).encode(),
        capture_output=True,
        check=True,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.strip()]
    assert len(answers) == len(turns)
    template = open_model(fetch_default_model()).chat_template
    messages = [{"role": "system", "content": "Answer briefly."}]
    for turn, answer in zip(turns, answers, strict=True):
        messages.append({"role": "user", "content": turn})
        rendered, _ = render_jinja_template([messages], chat_template=template, add_generation_prompt=True)
        expected = _encode_with_plain_contents(tokenizer, rendered[0], turns)
        assert answer["prompt_ids"] == expected
        assert answer["ids"] == eager_greedy(eager, expected, 24, ENDS)
        messages.append({"role": "assistant", "content": answer["text"]})


def _encode_with_plain_contents(tokenizer: Tokenizer, text: str, contents: Sequence[str]) -> list[int]:
    """Ids of a rendered conversation in which special tokens are parsed, but not those that a user typed."""
    end = "<|im_end|>"
    for content in contents:
        text = text.replace(content, content.replace(end, "\ue000"))
    ids: list[int] = []
    for part in re.split(r"(<\|im_start\|>|<\|im_end\|>)", text):
        if part.startswith("<|im_"):
            ids.append(tokenizer.token_to_id(part))
        elif part:
            tokenizer.encode_special_tokens = True
            ids += tokenizer.encode(part.replace("\ue000", end), add_special_tokens=False).ids
            tokenizer.encode_special_tokens = False
    return ids


def test_logits_of_every_position(
    program: Program, eager: LlamaForCausalLM, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    ids = tokenizer.encode(PARAGRAPH, add_special_tokens=False).ids[:64]
    expected = eager_logits(eager, ids)
    text = ",".join(map(str, ids))

    def rows(count: int, *arguments: str) -> Any:
        path = tmp_path / "logits.npy"
        chosen = ",".join(text.split(",")[:count])
        done = program.run("--ids", chosen, "-n", "0", "--dump-logits", str(path), *arguments)
        assert done.returncode == 0, done.stderr.decode()
        return np.load(path)

    np.testing.assert_allclose(rows(64, "--ubatch-size", "1"), expected, atol=1e-3, rtol=0)
    for count in range(2, 65):
        np.testing.assert_allclose(rows(count)[-1], expected[count - 1], atol=1e-3, rtol=0)
