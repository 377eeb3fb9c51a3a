"""`buddy build` and `buddy run`, as installed, away from the sources."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request

import pytest

IDS = ["--ids", "1,2,3", "-n", "4", "--ignore-eos", "--json"]
WEIGHTS = "llama.weights.safetensors"


def answer(done: subprocess.CompletedProcess[str]) -> list[int]:
    return json.loads(done.stdout)["ids"]


def test_build_leaves_a_folder_that_runs(buddy, run, tiny_model, tmp_path):
    output = tmp_path / "out é"
    built = json.loads(buddy("build", tiny_model, "-o", output, "--json").stdout)
    assert built["executable"] == str(output / "buddy-llama-run")
    assert set(built["files"]) >= {"buddy-llama-run", "libllama.so", WEIGHTS}
    assert not list(output.glob("*.tmp"))
    ids = answer(run(output / "buddy-llama-run", *IDS))
    assert len(ids) == 4

    # The folder stands on its own, elsewhere and without the cache.
    moved = tmp_path / "elsewhere"
    output.rename(moved)
    shutil.rmtree(tmp_path / "cache é")
    assert answer(run(moved / "buddy-llama-run", *IDS)) == ids
    assert answer(buddy("run", moved, *IDS)) == ids


def test_run_builds_once_and_follows_the_model(buddy, tiny_model, tmp_path):
    model = shutil.copytree(tiny_model, tmp_path / "model")
    first = buddy("run", model, *IDS)
    start = time.monotonic()
    second = buddy("run", model, *IDS)
    assert answer(first) == answer(second)
    assert time.monotonic() - start < 10
    assert not second.stderr

    from safetensors.torch import load_file, save_file

    weights = load_file(model / "model.safetensors")
    weights["lm_head.weight"] = weights["lm_head.weight"].flip(0)
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    assert answer(buddy("run", model, *IDS))[0] == 100 - answer(first)[0]


def test_a_built_folder_is_served(buddy, stage, run, tiny_model, tmp_path):
    """The library in the folder gives what the program beside it gives."""
    output = tmp_path / "out"
    buddy("build", tiny_model, "-o", output, "--quiet")
    expected = answer(run(output / "buddy-llama-run", "--ids", "1,2,3", "-n", "8", "--json"))
    environment = os.environ | {"PYTHONPATH": str(stage)}
    command = [sys.executable, "-m", "buddy_gen.cli", "serve", str(output), "--port", "0"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, cwd="/") as server:
        try:
            port = re.search(r":(\d+)/v1 ", server.stderr.readline())[1]
            body = {"model": "out", "prompt": [1, 2, 3], "max_tokens": 8, "temperature": 0, "logprobs": 0}
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}/v1/completions",
                json.dumps(body).encode(),
                {"Content-Type": "application/json"},
            )
            with urllib.request.urlopen(request, timeout=60) as response:
                served = json.load(response)
            assert served["usage"]["completion_tokens"] == len(expected)
            assert len(served["choices"][0]["logprobs"]["token_logprobs"]) == len(expected)
        finally:
            server.send_signal(signal.SIGTERM)
        server.stderr.read()
        assert server.wait(20) == 0


@pytest.mark.parametrize("seconds", [3, 6])
def test_killed_build_is_repaired_by_running_again(buddy, stage, run, tiny_model, tmp_path, seconds):
    output = tmp_path / "out"
    environment = os.environ | {"PYTHONPATH": str(stage), "BUDDY_CACHE_DIR": str(tmp_path / "cache é")}
    command = [sys.executable, "-m", "buddy_gen.cli", "build", str(tiny_model), "-o", str(output)]
    killed = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, start_new_session=True)
    time.sleep(seconds)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    buddy("build", tiny_model, "-o", output, "--quiet")
    assert len(answer(run(output / "buddy-llama-run", *IDS))) == 4


def test_failures_are_one_sentence(buddy, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    for arguments, part in (
        (["build", tmp_path / "missing", "-o", tmp_path / "out"], "missing"),
        (["build", empty, "-o", tmp_path / "out"], "empty"),
        (["run", empty], "empty"),
    ):
        failed = buddy(*arguments, code=1)
        last = failed.stderr.strip().splitlines()[-1]
        assert last.startswith("buddy: ") and part in last
        assert "Traceback" not in failed.stderr + failed.stdout
    assert not (tmp_path / "out").exists()
    builds = tmp_path / "cache é" / "builds"
    assert not builds.exists() or not list(builds.iterdir()), "a failed build leaves no folder"
    assert buddy("build", empty, code=2)
