"""Commands in processes of their own that need not import the host first.

A server process imports fairseq and the plugins once, and forks for each command. What a command sees is what
``python -m MODULE ARGUMENTS`` gives it: its own process, arguments, working directory and output.
"""

import logging
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Dict, List, Optional

import torch

TIMEOUT_SECONDS = 300

_server = multiprocessing.get_context("forkserver")


def run_module(module: str, *arguments, environment: Dict[str, str], cwd=None) -> subprocess.CompletedProcess:
    """Run ``python -m module arguments`` to its end, with its output as text.

    Raises:
        subprocess.TimeoutExpired: if it takes too long.
    """
    _server.set_forkserver_preload(["fairseq_plugins"])
    texts = [str(argument) for argument in arguments]
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder) / name for name in ("stdout", "stderr")]
        process = _server.Process(target=_work, args=(module, texts, environment, cwd, outputs))
        process.start()
        process.join(TIMEOUT_SECONDS)
        if process.exitcode is None:
            process.kill()
            raise subprocess.TimeoutExpired([module, *texts], TIMEOUT_SECONDS)
        out, err = (path.read_text(encoding="utf-8") for path in outputs)
    return subprocess.CompletedProcess([module, *texts], process.exitcode, out, err)


def _work(module: str, arguments: List[str], environment: Dict[str, str], cwd: Optional[Path], outputs: List[Path]):
    os.environ.clear()
    os.environ.update(environment)
    torch.set_num_threads(int(environment["OMP_NUM_THREADS"]))  # torch read the variable in the server
    os.chdir(cwd or os.getcwd())
    for descriptor, path in zip((1, 2), outputs):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), descriptor)
    sys.stdout, sys.stderr = (open(descriptor, "w", encoding="utf-8", closefd=False) for descriptor in (1, 2))
    sys.argv = [module, *arguments]
    logging.root.handlers.clear()  # the host's commands set them before they import the host
    status = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as error:
        status = error.code
    except BaseException:
        traceback.print_exc()
        status = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    sys.exit(status)
