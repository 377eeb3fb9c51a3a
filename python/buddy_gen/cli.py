"""The command line: ``buddy build``, ``run``, ``chat``, ``serve``, ``bench``, ``eval``, ``inspect`` and others."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from buddy_gen.bench.command import bench_command
from buddy_gen.build_options import BuildOptions, with_build_options
from buddy_gen.building import PACKAGE, PROGRAM, build_model, find_cmake_dir
from buddy_gen.errors import BuddyError
from buddy_gen.evaluate.command import eval_command
from buddy_gen.inspect.command import inspect_command
from buddy_gen.version import version

_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Compile language models to native programs.",
    epilog="Exit codes: 0 success, 1 a failure, 2 wrong usage. `buddy COMMAND --help` has examples.",
)


def _examples(*lines: str) -> str:
    """An epilog that keeps its line breaks."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="A Hugging Face folder, a GGUF file, or smollm2 for the default model.")
]
Built = Annotated[
    str, typer.Argument(metavar="MODEL", help="A folder made by `buddy build`, or a model (see `buddy build`).")
]


def _show_version(wanted: bool) -> None:
    if wanted:
        print(version())
        raise typer.Exit


@app.callback()
def _main(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    pass


@app.command(
    epilog=_examples(
        "buddy build smollm2 -o smollm2              the default model",
        "buddy build Llama-3.2-1B -o llama           a Hugging Face folder",
        "buddy build model.gguf -o out --target x86-64-v3",
        "buddy build smollm2 -o small --dtype w8a8   int8 weights and activations",
        "buddy build smollm2 -o out --json           what was made, as JSON on stdout",
    )
)
@with_build_options
def build(
    model: Model,
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder that gets the program and its files.")],
    options: BuildOptions,
    score: Annotated[bool, typer.Option("--score", help="Add what makes `buddy eval` fast.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object; progress goes to stderr.")] = False,
) -> None:
    """Compile MODEL into a folder that runs as it is."""
    entries = "prefill,decode,score" if score else "prefill,decode"
    result = build_model(options.of(model, entries), output.absolute(), quiet, to_stderr=as_json)
    if as_json:
        print(json.dumps(result))


def _built_folder(model: str, options: BuildOptions) -> Path:
    """The folder with MODEL's program: MODEL itself, or one in the cache, where it is built if it has to be."""
    folder = Path(model).absolute()
    if (folder / PROGRAM).is_file():
        return folder
    build = options.of(model)
    folder = build.work_dir() / "run"
    build_model(build, folder, quiet=(folder / PROGRAM).exists(), to_stderr=True)
    return folder


@app.command(
    context_settings=_PASS_ON,
    epilog=_examples(
        'buddy run smollm2 -p "The capital of France is" -n 32',
        "buddy run out --json < prompt.txt",
        "buddy run out --help                        the program's own options",
    ),
)
@with_build_options
def run(context: typer.Context, model: Built, options: BuildOptions) -> None:
    """Run MODEL; what follows it goes to the program, such as -p TEXT (see `buddy run MODEL --help`).

    A model is built first, with progress on stderr, unless the cache holds it.
    """
    _exec(_built_folder(model, options) / PROGRAM, context.args)


@app.command(
    context_settings=_PASS_ON,
    epilog=_examples(
        "buddy chat smollm2",
        'buddy chat smollm2 -sys "Answer in one sentence." --temp 0.7',
        'echo "What is 2 + 2?" | buddy chat out --json',
    ),
)
@with_build_options
def chat(context: typer.Context, model: Built, options: BuildOptions) -> None:
    """Chat with MODEL; what follows it goes to the program, such as -sys TEXT (see `buddy run MODEL --help`).

    A model is built first, with progress on stderr, unless the cache holds it.
    """
    _exec(_built_folder(model, options) / PROGRAM, ["-cnv", *context.args])


@app.command(
    epilog=_examples(
        "buddy serve smollm2",
        "buddy serve out --port 9000 -c 2048 --threads 4",
        "BUDDY_API_KEY=secret buddy serve out --host 0.0.0.0",
        "curl http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' \\",
        '  -d \'{"model": "smollm2", "messages": [{"role": "user", "content": "Hello"}]}\'',
    )
)
@with_build_options
def serve(
    model: Built,
    *,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for every one.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8080,
    threads: Annotated[int, typer.Option("-t", "--threads", min=0, max=1024, help="Threads; 0: the CPUs allowed.")] = 0,
    context: Annotated[
        int | None,
        typer.Option(
            "-c", "--context", min=0, max=2**31, help="Context in tokens; 0: the model's own (default: at most 4096)."
        ),
    ] = None,
    sessions: Annotated[
        int, typer.Option(min=1, max=1024, help="Conversations that are kept evaluated, each with a KV cache.")
    ] = 4,
    api_key: Annotated[
        str | None, typer.Option("--api-key", envvar="BUDDY_API_KEY", help="Key that clients must send.")
    ] = None,
    model_name: Annotated[
        str | None, typer.Option("--model-name", help="Name of the model for clients (default: MODEL's own).")
    ] = None,
    max_tokens_limit: Annotated[
        int | None, typer.Option(min=1, help="Most tokens of an answer (default: the context).")
    ] = None,
    max_body_bytes: Annotated[int, typer.Option(min=1, help="Largest request in bytes.")] = 4 * 2**20,
    max_queue: Annotated[int, typer.Option(min=0, help="Most requests that wait for their turn.")] = 32,
    quiet: Annotated[bool, typer.Option("--quiet", help="Log failures alone.")] = False,
    options: BuildOptions,
) -> None:
    """Serve MODEL over HTTP, as OpenAI's API has it, until Ctrl-C.

    A model is built first, with progress on stderr, unless the cache holds it.
    """
    folder = _built_folder(model, options)
    from buddy_gen.serve.command import ServeOptions, serve_folder  # slow to import, and no other command needs it

    serve_folder(
        folder,
        ServeOptions(
            model=model_name or Path(model).absolute().name.removesuffix(".gguf"),
            host=host,
            port=port,
            threads=threads,
            context=context,
            sessions=sessions,
            api_key=api_key,
            max_tokens=max_tokens_limit,
            max_body_bytes=max_body_bytes,
            max_queue=max_queue,
            quiet=quiet,
        ),
    )


app.command(
    "bench",
    epilog=_examples(
        "buddy bench out", "buddy bench out --quick --peers none", "buddy bench out --markdown --save run.json"
    ),
)(bench_command)


app.command(
    "eval",
    epilog=_examples(
        "buddy eval out text.txt",
        "buddy eval small text.txt --reference out   perplexity, KL divergence, top-1 agreement",
        "buddy eval small text.txt --reference smollm2 --json",
    ),
)(eval_command)

app.command("inspect", epilog=_examples("buddy inspect out", "buddy inspect out/llama.weights.safetensors --json"))(
    inspect_command
)


@app.command("cmake-dir", epilog=_examples("cmake -S . -B build -DBuddy_DIR=$(buddy cmake-dir)"))
def cmake_dir() -> None:
    """Print the folder of BuddyConfig.cmake, for find_package(Buddy) with -DBuddy_DIR."""
    print(find_cmake_dir())


@app.command("version", epilog=_examples("buddy version"))
def version_command() -> None:
    """Print the version and, where it is known, the commit."""
    print(version())


def _exec(program: Path, arguments: list[str]) -> NoReturn:
    sys.stdout.flush()
    try:
        os.execv(program, [str(program), *arguments])
    except OSError as error:
        raise BuddyError(f"{program} cannot be run ({error.strerror}).") from error


def main() -> None:
    """The console script ``buddy``: exit code 0 success, 1 a failure with its sentence, 2 wrong usage."""
    try:
        app()
    except BuddyError as error:
        print(f"buddy: {error}", file=sys.stderr)
        sys.exit(1)


def buddy_opt() -> None:
    """The console script ``buddy-opt``: becomes the program that is installed inside the package."""
    try:
        _exec(PACKAGE / "bin" / "buddy-opt", sys.argv[1:])
    except BuddyError as error:
        print(f"buddy-opt: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
