"""What `buddy serve` does once there is a folder with a library."""

from __future__ import annotations

import ipaddress
import logging
import sys
from dataclasses import dataclass
from pathlib import Path

from buddy_gen.errors import BuddyError
from buddy_gen.serve.app import Settings, make_app
from buddy_gen.serve.engine import Engine
from buddy_gen.serve.library import LibraryEngine, find_library
from buddy_gen.serve.scheduler import Scheduler
from buddy_gen.serve.server import Server, listen, log_to_stderr

__all__ = ["ServeOptions", "serve_folder"]


@dataclass(frozen=True)
class ServeOptions:
    """The command's options; None stands for a default."""

    model: str
    host: str = "127.0.0.1"
    port: int = 8080
    threads: int = 0  # 0: the CPUs allowed
    context: int | None = None  # 0: the model's longest
    sessions: int = 4  # conversations that are kept evaluated
    api_key: str | None = None
    max_tokens: int | None = None
    max_body_bytes: int = 4 * 2**20
    max_queue: int = 32
    quiet: bool = False


def serve_folder(folder: Path, options: ServeOptions) -> None:
    """Serves the model in `folder` until a signal comes.

    Raises:
        BuddyError: It cannot be loaded, or the address cannot be listened on.
    """
    if options.api_key == "":
        raise BuddyError("The API key is empty; give one, or leave out --api-key and BUDDY_API_KEY.")
    log_to_stderr(quiet=options.quiet)
    library = find_library(folder)
    with listen(options.host, options.port) as opened:
        engine = LibraryEngine(
            library,
            context=-1 if options.context == 0 else options.context or 0,
            threads=options.threads,
            sessions=options.sessions,
        )
        settings = Settings(
            model=options.model,
            max_tokens=options.max_tokens or engine.info.context,
            max_body_bytes=options.max_body_bytes,
            api_key=options.api_key,
            created=int(library.stat().st_mtime),
        )
        scheduler = Scheduler(options.max_queue)
        server = Server(make_app(engine, scheduler, settings), scheduler.stop)
        _announce(options, engine, opened.getsockname()[1])
        server.run([opened])
        if scheduler.join(timeout=10):  # an evaluation that is under way cannot be interrupted
            engine.close()


def _announce(options: ServeOptions, engine: Engine, port: int) -> None:
    host = f"[{options.host}]" if ":" in options.host else options.host
    info = engine.info
    if options.api_key is None and not _is_loopback(options.host):
        logging.getLogger("buddy.serve").warning("Everybody who reaches %s can use this server: no --api-key.", host)
    print(
        f"Serving {options.model} on http://{host}:{port}/v1 with {_counted(info.threads, 'thread')} and "
        f"{_counted(info.sessions, 'session')} of {info.context} tokens (each up to "
        f"{max(1, round(info.session_bytes / 1e6))} MB). Ctrl-C ends it.",
        file=sys.stderr,
        flush=True,
    )


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
