"""Trained models behind HTTP."""

import argparse
from dataclasses import fields
from pathlib import Path

from fairseq_plugins.command_line import add_cpu, add_trained_model, choose_device
from fairseq_plugins.console import Command
from fairseq_plugins.evaluation.api import load_trained
from fairseq_plugins.files import BEST, LAST
from fairseq_plugins.options import UserError, check_positive, count
from fairseq_plugins.serving.batching import Limits

LIBRARIES = ("fastapi", "pydantic", "starlette", "uvicorn")


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) > 65535:
        raise UserError(f"{text}: give a number up to 65535")
    return int(text)


COUNTED = [limit for limit in fields(Limits) if limit.name != "seconds"]
"""Limits with a flag ``--max-NAME``."""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_trained_model(
        parser,
        metavar="DIR",
        help="an export or a checkpoint, of an encoder-decoder or language model; several are an ensemble",
        default_data="the export, or the folder of the training",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at (default: %(default)s, this machine)")
    parser.add_argument("--port", type=_port, default=8000, help="port; 0 takes any free one (default: %(default)s)")
    for limit in COUNTED:
        help = f"{limit.metadata['help']} (default: %(default)s)"
        parser.add_argument(f"--max-{limit.name}", type=count, default=limit.default, metavar="N", help=help)
    parser.add_argument(
        "--timeout",
        type=float,
        default=Limits.seconds,
        metavar="SECONDS",
        help="for a request, and for an idle connection (default: %(default)s)",
    )
    add_cpu(parser)


def _serve(args: argparse.Namespace) -> None:
    try:
        from fairseq_plugins.serving.server import ModelServer, listen, serve
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in LIBRARIES:
            raise
        raise UserError(f"no {error.name} in this Python: pip install fastapi uvicorn, or the extra [serve]") from error
    numbers = {limit.name: getattr(args, f"max_{limit.name}") for limit in COUNTED}
    limits = Limits(**numbers, seconds=check_positive(args.timeout, flag="--timeout"))
    with listen(args.host, args.port) as listening:
        model = load_trained(args.path, args.data, device=choose_device(args))
        path = Path(args.path[0]).resolve()
        server = ModelServer(model, name=path.parent.name if path.name in (BEST, LAST) else path.stem, limits=limits)
        host, port = listening.getsockname()[:2]
        address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        print(f"{server.kind} {server.name} at {address}", flush=True)
        serve(server, listening)


SERVE = Command(
    add_arguments=_add_arguments,
    run=_serve,
    description="""\
Encoder-decoders answer POST /translate, language models POST /score and POST /generate, in JSON. GET / is a page to try
them, GET /docs describes requests and answers, GET /health names the model. Waiting requests are processed in one
batch. The answer for a line does not depend on other lines. On SIGTERM or Ctrl-C, requests that have come are answered,
and the command ends with status 0. It needs the extra [serve]: pip install fastapi uvicorn.""",
    example="shipped/m30k --port 8000",
)
