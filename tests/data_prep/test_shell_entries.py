"""The scripts in a shell, with the host in a process of its own: results, errors, runs that are killed."""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from preparation_runs import REPOSITORY, binarised, binarised_text, prepare_in_shell, snapshot, succeed
from small_corpora import PTB, multi30k_files, ptb_files
from small_texts import LANGUAGES, write_files


@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_text(here: Path) -> None:
    write_files(here / "my files", ptb_files())
    done = prepare_in_shell("ptb", "--from", "my files", cwd=here)
    assert done.returncode == 0, done.stderr
    assert "fairseq_plugins.cli.train reduced doc data-bin/ptb --save-dir checkpoints/ptb" in done.stdout
    text = " ".join(word for line in binarised_text(here / "data-bin" / "ptb", "train") for word in line)
    assert text == " ".join(PTB["train"].decode().replace("\n", "</s>").split())
    here_too = succeed("ptb", "--from", "my files", "--dest", "here too", cwd=here)
    assert "already complete" in here_too.stderr  # its text
    results = [snapshot(here / "data-bin" / "ptb"), snapshot(here / "here too")]
    assert all(results[0][name] == results[1][name] for name in results[0] if name != "preprocess.log")


@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_pairs(here: Path) -> None:
    write_files(here / "my files", multi30k_files())
    done = prepare_in_shell("multi30k", "de-en", "--from", "my files", "--merges", 20, cwd=here)
    assert done.returncode == 0, done.stderr
    for language in LANGUAGES:
        assert len(binarised(here / "data-bin" / "multi30k.de-en", "train", "de-en", language)) == 60


def test_exit_status(here: Path) -> None:
    done = prepare_in_shell("ptb", "--from", "nowhere", cwd=here)
    assert done.returncode == 1 and done.stderr.splitlines()[-1].startswith("error: --from nowhere is not a directory")
    done = prepare_in_shell("tatoeba", "de-fr", cwd=here)
    assert done.returncode == 2 and "'de-fr' is neither a language nor two of which one is en" in done.stderr


@pytest.mark.parametrize("script", sorted(REPOSITORY.glob("data-prep/*/prepare.sh")), ids=lambda path: path.parent.name)
def test_python_is_missing(script: Path, here: Path) -> None:
    for tool in ["bash", "dirname", "readlink"]:
        (here / tool).symlink_to(next(path for path in [Path("/bin") / tool, Path("/usr/bin") / tool] if path.exists()))
    done = subprocess.run([here / "bash", script], env={"PATH": str(here)}, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "error: python3 is not on PATH: activate the environment that fairseq is installed in\n"


@pytest.mark.slow
def test_path_that_the_output_cannot_show(here: Path) -> None:
    """The result is there, and so is the status."""
    write_files(here / "my files", ptb_files())
    variables = {"PYTHONIOENCODING": "ascii", "PYTHONSAFEPATH": "1"}
    done = prepare_in_shell("ptb", "--from", "my files", "--dest", "dü", cwd=here, **variables)
    assert done.returncode == 0 and r"The binarised corpus is in d\xfc" in done.stdout, done.stderr
    assert (here / "dü/prepared.txt").is_file()


def assert_nothing_runs_in(folder: Path) -> None:
    """No process that a killed run started outlives it for long."""
    for _ in range(200):
        places = []
        for link in Path("/proc").glob("[0-9]*/cwd"):
            with contextlib.suppress(OSError):
                places.append(os.readlink(link))
        if not any(place.startswith(str(folder)) for place in places):
            return
        time.sleep(0.05)
    raise AssertionError(f"something still runs in {folder}")


@pytest.mark.slow
def test_kill_and_run_again(tmp_path: Path) -> None:
    options = ["de-en", "--from", "../x", "--merges", 60, "--workers", 2]
    command = ["bash", REPOSITORY / "data-prep" / "multi30k" / "prepare.sh", *map(str, options)]
    write_files(tmp_path / "x", multi30k_files(num_lines=4000))
    for name in ["undisturbed", "killed"]:
        (tmp_path / name).mkdir()
    env = {**os.environ, "EXPECTED_COUNTS": "skip"}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    partial_folders = ["downloads/*/*/.text.*", "downloads/*/*/.tokens.*", "downloads/*/*/.subwords.*", "data-bin/.*"]
    for pattern in partial_folders:
        process = subprocess.Popen(command, cwd=tmp_path / "killed", env=env, **quiet)
        while not list((tmp_path / "killed").glob(pattern)):
            assert process.poll() is None, f"{pattern} never appeared"
            time.sleep(0.002)
        time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert_nothing_runs_in(tmp_path / "killed")
        assert not (tmp_path / "killed" / "data-bin" / "multi30k.de-en").exists()
    for name in ["undisturbed", "killed"]:
        succeed("multi30k", *options, cwd=tmp_path / name)
    results = [snapshot(tmp_path / name) for name in ["undisturbed", "killed"]]
    assert set(results[0]) == set(results[1])
    for name in results[0]:
        assert results[0][name] == results[1][name], name
