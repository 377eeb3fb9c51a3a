"""The log-probabilities of an answer where tokens are parts of characters, or where there are none."""

from __future__ import annotations

from toy_server import MODEL, FakeEngine

from buddy_gen.serve.answers import Ended, Piece
from buddy_gen.serve.engine import Likelihood, Outcome, Stop, Token
from buddy_gen.serve.responses import ChatWriter, CompletionWriter

OPTIONS = {"with_usage": False, "with_scores": True}
SPELLINGS = [b"\xf0\x9f", b"\x99", b"\x9a", b"a", b"a", "é".encode(), b""]


class Spelling(FakeEngine):
    def token_bytes(self, token: int) -> bytes:
        return SPELLINGS[token]


def test_tokens_that_are_parts_of_characters_have_names_of_their_own() -> None:
    writer = CompletionWriter(Spelling(), MODEL, 1, [[1]], **OPTIONS)
    likely = tuple(Likelihood(i, -0.5 * i) for i in range(len(SPELLINGS)))
    writer.take(Piece(0, Token(1, "", -0.5, likely)))
    writer.take(Ended(0, Outcome(Stop.LENGTH, 1, 0, 1)))
    scores = writer.whole()["choices"][0]["logprobs"]
    assert scores["tokens"] == ["bytes:\\x99"]
    names = ["bytes:\\xf0\\x9f", "bytes:\\x99", "bytes:\\x9a", "a", "token_id:4", "é", ""]
    assert list(scores["top_logprobs"][0].items()) == [(name, -0.5 * i) for i, name in enumerate(names)]


def test_no_token_gives_empty_lists() -> None:
    for kind, empty in (
        (CompletionWriter, {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}),
        (ChatWriter, {"content": [], "refusal": None}),
    ):
        for asked in (True, False):
            writer = kind(FakeEngine(), MODEL, 1, [[1]], with_usage=False, with_scores=asked)
            writer.take(Ended(0, Outcome(Stop.END, 1, 0, 0)))
            assert writer.whole()["choices"][0]["logprobs"] == (empty if asked else None)
