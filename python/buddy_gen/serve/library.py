"""lib<NAME>.so, the C interface of cpp/apps/llama/Library.h, as an Engine."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from buddy_gen.errors import BuddyError
from buddy_gen.serve.engine import CancelFlag, EngineInfo, Likelihood, Message, Outcome, Sampling, Stop, Token

__all__ = ["LibraryEngine", "find_library"]

_INTERFACE = 2  # BUDDY_LLAMA_INTERFACE
_WEIGHTS = ".weights.safetensors"
_ROLES = {"system": 0, "user": 1, "assistant": 2}
_Ids = ctypes.POINTER(ctypes.c_int32)


class _Info(ctypes.Structure):
    _fields_ = [
        ("model_id", ctypes.c_char_p),
        ("chat_unavailable", ctypes.c_char_p),
        ("context", ctypes.c_int64),
        ("vocab_size", ctypes.c_int64),
        ("has_text", ctypes.c_int32),
        ("threads", ctypes.c_int32),
        ("sessions", ctypes.c_int32),
        ("session_bytes", ctypes.c_int64),
    ]


class _Message(ctypes.Structure):
    _fields_ = [("role", ctypes.c_int32), ("content", ctypes.c_char_p), ("size", ctypes.c_size_t)]


class _Likelihood(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int32), ("log_probability", ctypes.c_double)]


class _Token(ctypes.Structure):
    _fields_ = [
        ("id", ctypes.c_int32),
        ("text", ctypes.c_void_p),
        ("size", ctypes.c_size_t),
        ("log_probability", ctypes.c_double),
        ("likely", ctypes.POINTER(_Likelihood)),
        ("likely_count", ctypes.c_size_t),
    ]


class _Text(ctypes.Structure):
    _fields_ = [("text", ctypes.c_char_p), ("size", ctypes.c_size_t)]


class _Request(ctypes.Structure):
    _fields_ = [
        ("max_tokens", ctypes.c_int64),
        ("temperature", ctypes.c_double),
        ("top_k", ctypes.c_int64),
        ("top_p", ctypes.c_double),
        ("min_p", ctypes.c_double),
        ("repeat_penalty", ctypes.c_double),
        ("presence_penalty", ctypes.c_double),
        ("frequency_penalty", ctypes.c_double),
        ("seed", ctypes.c_uint64),
        ("stops", ctypes.POINTER(_Text)),
        ("stop_count", ctypes.c_size_t),
        ("likely_count", ctypes.c_int64),
        ("cancelled", ctypes.POINTER(ctypes.c_int32)),
        ("ignore_end", ctypes.c_int32),
    ]


class _Answer(ctypes.Structure):
    _fields_ = [
        ("stop", ctypes.c_int32),
        ("prompt_tokens", ctypes.c_int64),
        ("cached_tokens", ctypes.c_int64),
        ("generated_tokens", ctypes.c_int64),
        ("prefill_seconds", ctypes.c_double),
        ("decode_seconds", ctypes.c_double),
    ]


_Receiver = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.POINTER(_Token))

_MODEL = ctypes.c_void_p
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "interface": (ctypes.c_int32, []),
    "error": (ctypes.c_char_p, []),
    "open": (_MODEL, [ctypes.c_char_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_int32]),
    "close": (None, [_MODEL]),
    "describe": (None, [_MODEL, ctypes.POINTER(_Info)]),
    "tokenize": (
        ctypes.c_int64,
        [_MODEL, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(_Ids)],
    ),
    "detokenize": (
        ctypes.c_int64,
        [_MODEL, _Ids, ctypes.c_size_t, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p)],
    ),
    "render_chat": (ctypes.c_int64, [_MODEL, ctypes.POINTER(_Message), ctypes.c_size_t, ctypes.POINTER(_Ids)]),
    "free": (None, [ctypes.c_void_p]),
    "token_bytes": (ctypes.c_void_p, [_MODEL, ctypes.c_int32, ctypes.POINTER(ctypes.c_size_t)]),
    "generate": (
        ctypes.c_int32,
        [
            _MODEL,
            _Ids,
            ctypes.c_size_t,
            ctypes.POINTER(_Request),
            _Receiver,
            ctypes.c_void_p,
            ctypes.POINTER(_Answer),
        ],
    ),
}


def find_library(folder: Path) -> Path:
    """The library in a folder made by `buddy build`.

    Raises:
        BuddyError: There is none, or more than one.
    """
    names = sorted(path.name.removesuffix(_WEIGHTS) for path in folder.glob(f"*{_WEIGHTS}"))
    found = [path for name in names if (path := folder / f"lib{name}.so").is_file()]
    if not names:
        raise BuddyError(f"The folder {folder} holds no model: there is no NAME{_WEIGHTS} in it.")
    if not found:
        raise BuddyError(f"The folder {folder} has no lib{names[0]}.so; build the model again with this buddy-gen.")
    if len(found) > 1:
        raise BuddyError(f"The folder {folder} holds several models ({', '.join(names)}); give each its own folder.")
    return found[0]


class _Library:
    """The functions of one library, with their types."""

    def __init__(self, path: Path) -> None:
        try:
            self._loaded = ctypes.CDLL(str(path))
            for name, (result, arguments) in _SIGNATURES.items():
                function = getattr(self._loaded, f"buddy_llama_{name}")
                function.restype, function.argtypes = result, arguments
                setattr(self, name, function)
        except (OSError, AttributeError) as error:
            raise BuddyError(f"The library {path} cannot be loaded: {error}.") from None
        interface = self.interface()
        if interface != _INTERFACE:
            raise BuddyError(
                f"The library {path} has the interface {interface} and this buddy-gen needs {_INTERFACE}; "
                "build the model again."
            )

    def __getattr__(self, name: str) -> Any:  # for the type checker: the functions are set above
        raise AttributeError(name)

    def failure(self) -> BuddyError:
        sentence = self.error().decode("utf-8", "replace")
        return BuddyError(sentence[:1].upper() + sentence[1:] + ("" if sentence.endswith((".", "!", "?")) else "."))


class LibraryEngine:
    """A model in this process. Python's other threads run while it works."""

    def __init__(self, library: Path, *, context: int = 0, threads: int = 0, sessions: int = 1) -> None:
        """Loads `library` and the files beside it.

        Args:
            library: lib<NAME>.so.
            context: Positions of a KV cache; 0 for the default (at most 4096), -1 for the model's longest.
            threads: Threads of the library; 0 for the CPUs that the process may use.
            sessions: How many conversations stay evaluated, each in a KV cache; 1 to 1024.

        Raises:
            BuddyError: Something is missing, damaged, of another model, or not for this machine.
        """
        self._library = _Library(library)
        self._model: int | None = self._library.open(str(library.parent).encode(), context, threads, sessions)
        if not self._model:
            raise self._library.failure()
        info = _Info()
        self._library.describe(self._model, ctypes.byref(info))
        reason = info.chat_unavailable
        self.info = EngineInfo(
            model_id=info.model_id.decode(),
            context=info.context,
            vocab_size=info.vocab_size,
            has_text=bool(info.has_text),
            threads=info.threads,
            sessions=info.sessions,
            session_bytes=info.session_bytes,
            chat_unavailable=None if reason is None else reason.decode("utf-8", "replace"),
        )

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        content = text.encode()
        ids = _Ids()
        count = self._library.tokenize(
            self._model, content, len(content), add_special, parse_special, ctypes.byref(ids)
        )
        return self._taken(ids, count)

    def detokenize(self, ids: Sequence[int]) -> str:
        text = ctypes.c_void_p()
        size = self._library.detokenize(
            self._model, (ctypes.c_int32 * len(ids))(*ids), len(ids), True, ctypes.byref(text)
        )
        if size < 0:
            raise self._library.failure()
        try:
            return ctypes.string_at(text.value or 0, size).decode("utf-8", "replace")
        finally:
            self._library.free(text)

    def token_bytes(self, token: int) -> bytes:
        size = ctypes.c_size_t()
        start = self._library.token_bytes(self._model, token, ctypes.byref(size))
        return ctypes.string_at(start, size.value) if start and size.value else b""

    def render_chat(self, messages: Sequence[Message]) -> list[int]:
        turns = (_Message * len(messages))()
        for turn, message in zip(turns, messages, strict=True):
            content = message.content.encode()
            turn.role, turn.content, turn.size = _ROLES[message.role], content, len(content)
        ids = _Ids()
        return self._taken(ids, self._library.render_chat(self._model, turns, len(turns), ctypes.byref(ids)))

    def generate(
        self, ids: Sequence[int], sampling: Sampling, receiver: Callable[[Token], None], cancelled: CancelFlag
    ) -> Outcome:
        raised: list[BaseException] = []

        def receive(_context: int | None, token: Any) -> int:
            try:
                receiver(_token(token.contents, sampling.likely_count >= 0))
            except BaseException as error:
                raised.append(error)
                return 1
            return 0

        answer = _Answer()
        failed = self._library.generate(
            self._model,
            (ctypes.c_int32 * len(ids))(*ids),
            len(ids),
            ctypes.byref(_request(sampling, cancelled)),
            _Receiver(receive),
            None,
            ctypes.byref(answer),
        )
        if raised:
            raise raised[0]
        if failed:
            raise self._library.failure()
        return Outcome(Stop(answer.stop), answer.prompt_tokens, answer.cached_tokens, answer.generated_tokens)

    def close(self) -> None:
        """Gives the memory back; nothing else may be called then."""
        model, self._model = self._model, None
        self._library.close(model)

    def _taken(self, ids: Any, count: int) -> list[int]:
        if count < 0:
            raise self._library.failure()
        try:
            return list(ids[:count])
        finally:
            self._library.free(ids)


def _token(token: Any, with_probabilities: bool) -> Token:
    text = ctypes.string_at(token.text, token.size).decode("utf-8", "replace") if token.size else ""
    if not with_probabilities or token.id < 0:
        return Token(token.id, text)
    likely = tuple(Likelihood(one.id, one.log_probability) for one in token.likely[: token.likely_count])
    return Token(token.id, text, token.log_probability, likely)


def _request(sampling: Sampling, cancelled: CancelFlag) -> _Request:
    """The request; it keeps alive what it points to."""
    stops = (_Text * len(sampling.stops))()
    for slot, stop in zip(stops, sampling.stops, strict=True):
        content = stop.encode()
        slot.text, slot.size = content, len(content)
    return _Request(
        max_tokens=sampling.max_tokens,
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        repeat_penalty=sampling.repeat_penalty,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        seed=sampling.seed,
        stops=stops,
        stop_count=len(stops),
        likely_count=sampling.likely_count,
        cancelled=ctypes.pointer(cancelled.value),
        ignore_end=sampling.ignore_end,
    )
