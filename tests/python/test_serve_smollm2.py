"""A conversation with the default model through OpenAI's client: token for token what Hugging Face's f32 model says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizer_reference as reference
from compiled_program import eager_greedy, eager_logits, eager_model
from toy_server import MODEL, Running, serving
from transformers.utils.chat_template_utils import render_jinja_template

from buddy_gen.models import open_model
from buddy_gen.models.default_model import fetch_default_model
from buddy_gen.serve.library import LibraryEngine
from buddy_gen.weights.gguf_file import read_gguf

pytestmark = pytest.mark.slow
QUESTIONS = ["Name three colours.", "Which one is the darkest? 🎨", "  Thank you!  "]
END = 2


@pytest.fixture(scope="module")
def running(build_dir: Path) -> Iterator[Running]:
    library = build_dir / "bin" / "libllama.so"
    if not library.exists():
        pytest.skip("this build has no model")
    if b"__asan_init" in library.read_bytes():
        pytest.skip("a library with sanitizers cannot be loaded into an interpreter without them")
    cache = (build_dir / "CMakeCache.txt").read_text("utf-8")
    if "BUDDY_LLAMA_MODEL:STRING=smollm2" not in cache or "BUDDY_LLAMA_DTYPE:STRING=f32" not in cache:
        pytest.skip("this build is of another model")
    engine = LibraryEngine(library)
    with serving(engine, max_tokens=engine.info.context) as server:
        yield server
    engine.close()


def test_a_conversation_equals_the_template_and_eager(running: Running) -> None:
    model = fetch_default_model()
    eager, template = eager_model(model), open_model(model).chat_template
    judge = reference.from_gguf(read_gguf(model).metadata)
    messages: list[Any] = [{"role": "system", "content": "Answer briefly."}]
    with running.openai(timeout=300) as client:
        for number, question in enumerate(QUESTIONS):
            messages.append({"role": "user", "content": question})
            rendered, _ = render_jinja_template([messages], chat_template=template, add_generation_prompt=True)
            prompt = reference.encode(judge, rendered[0], parse_special=True)
            ids = eager_greedy(eager, prompt, 24, (END,))
            request: dict[str, Any] = {"model": MODEL, "messages": messages, "max_tokens": 24, "temperature": 0}
            answer = client.chat.completions.create(**request, logprobs=True, top_logprobs=1)
            text, usage = answer.choices[0].message.content or "", answer.usage
            assert text == judge.decode(ids, skip_special_tokens=True)
            assert answer.choices[0].finish_reason == ("length" if len(ids) == 24 else "stop")
            assert usage and (usage.prompt_tokens, usage.completion_tokens) == (len(prompt), len(ids))
            assert number == 0 or (usage.prompt_tokens_details and usage.prompt_tokens_details.cached_tokens)
            scores = answer.choices[0].logprobs
            assert scores and scores.content and len(scores.content) == len(ids)
            logits = eager_logits(eager, [*prompt, ids[0]])[-2].astype("float64")
            shifted = logits - logits.max()
            right = shifted[ids[0]] - np.log(np.exp(shifted).sum())
            assert scores.content[0].logprob == pytest.approx(right, abs=1e-3)
            stream = client.chat.completions.create(**request, stream=True)
            assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == text
            messages.append({"role": "assistant", "content": text})
