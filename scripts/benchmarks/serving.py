"""Requests per second that fairseq-plugins serve answers, one after another and from several clients at once.

Starts the server on a free port of this machine and sends it --requests lines of a text, one a request: for translation
if the model is a translator, else for scoring. Every client keeps one connection and asks as soon as it has its answer.
A first round, one after another, is not timed. Every request must be answered. Answers to many clients are compared
with answers to one. Writes serving_DEVICE.md and .json, with --name appended.
"""

import argparse
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from statistics import median, quantiles
from typing import Any, Dict, Iterator, List, Sequence, Tuple

from benchmark import main, write_report

from fairseq_plugins.command_line import add_cpu, add_input, add_out, choose_device
from fairseq_plugins.console import Command
from fairseq_plugins.files import given_path, read_lines
from fairseq_plugins.options import UserError, count
from fairseq_plugins.reports.report import Report
from fairseq_plugins.reports.tables import as_table


@contextmanager
def started_server(arguments: Sequence[str]) -> Iterator[Tuple[str, int]]:
    """Host and port of a server, which must end with status 0 after the block.

    Raises:
        UserError: if it does not start.
    """
    command = [sys.executable, "-m", "fairseq_plugins", "serve", *arguments, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if not line:
                raise UserError("the server did not start, for the reason above")
            host, _, port = line.strip().rpartition("http://")[2].rpartition(":")
            yield host, int(port)
        finally:
            process.terminate()
    assert process.returncode == 0 or not line


def ask(connection: HTTPConnection, path: str, body: Dict[str, Any]) -> Dict[str, Any]:
    """The answer to a request, which must have one."""
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    content: Dict[str, Any] = json.loads(answer.read())
    assert answer.status == 200, (answer.status, content)
    return content


def time_clients(
    address: Tuple[str, int], path: str, lines: Sequence[str], *, num_clients: int
) -> Tuple[List[Dict[str, Any]], Dict[str, float]]:
    """Answers to all lines, in their order, and figures of the time that they took."""
    answers: List[Dict[str, Any]] = [{} for _ in lines]
    seconds: List[float] = []

    def client(first: int) -> None:
        connection = HTTPConnection(*address)
        for number in range(first, len(lines), num_clients):
            start = time.perf_counter()
            answers[number] = ask(connection, path, {"lines": [lines[number]]})
            seconds.append(time.perf_counter() - start)
        connection.close()

    start = time.perf_counter()
    with ThreadPoolExecutor(num_clients) as pool:
        list(pool.map(client, range(num_clients)))
    rate = len(lines) / (time.perf_counter() - start)
    slowest = quantiles(seconds, n=20)[-1] if len(seconds) > 1 else seconds[0]
    return answers, {"requests_per_second": rate, "median_seconds": median(seconds), "slow_seconds": slowest}


def texts_of(answer: Dict[str, Any]) -> Any:
    """The texts and tokens of an answer to one line, which rounding of scores does not change."""
    ((found,),) = answer.values()
    return found.get("hypotheses", [{}])[0].get("text"), found["tokens"]


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", nargs="+", metavar="DIR", type=given_path, help="what fairseq-plugins serve takes")
    add_input(parser, help="text, a sentence a line")
    parser.add_argument("--requests", type=count, default=500, help="of each reading (default: %(default)s)")
    parser.add_argument(
        "--clients", type=count, nargs="+", default=[4, 16, 64], metavar="N", help="at once (default: 4 16 64)"
    )
    parser.add_argument("--name", metavar="NAME", default="", help="of the model, for the report (default: none)")
    add_cpu(parser)
    add_out(parser, help="directory for the report", default="results/benchmarks")


def run(args: argparse.Namespace) -> None:
    """Time all readings, and write and print the report."""
    if not args.input:
        raise UserError("--input: give a file with sentences")
    found = [line for path in args.input for line in read_lines(path)]
    lines = [found[number % len(found)] for number in range(args.requests)]
    figures: Dict[int, Dict[str, float]] = {}
    num_different = 0
    most = max(args.clients)
    flags = [*map(str, args.path), "--max-waiting", str(most), *(["--cpu"] if args.cpu else [])]
    with started_server(flags) as address:
        connection = HTTPConnection(*address)
        connection.request("GET", "/health")
        kind = json.loads(connection.getresponse().read())["kind"]
        path = "/translate" if kind == "translator" else "/score"
        expected = list(map(texts_of, time_clients(address, path, lines, num_clients=1)[0]))
        for number in sorted({1, *args.clients}):
            answers, figures[number] = time_clients(address, path, lines, num_clients=number)
            num_different += sum(texts_of(one) != wanted for one, wanted in zip(answers, expected))
    rows = [
        [
            f"{number}",
            f"{one['requests_per_second']:.1f}",
            f"{one['requests_per_second'] / figures[1]['requests_per_second']:.2f}",
            f"{1000 * one['median_seconds']:.0f}",
            f"{1000 * one['slow_seconds']:.0f}",
        ]
        for number, one in figures.items()
    ]
    table = as_table(["clients at once", "requests/s", "times one client", "median ms", "95 % within ms"], rows)
    report = Report(
        text=f"{table}\n\nPOST {path}, {len(lines):,} requests of one line each. All were answered; {num_different:,} "
        "answers had another text than with one client, by rounding.",
        figures={"kind": kind, "num_requests": len(lines), "num_different": num_different, "by_clients": figures},
    )
    write_report(report, args, "serving", choose_device(args), args.name)


BENCHMARK = Command(
    add_arguments=_add_arguments,
    run=run,
    description=__doc__ or "",
    example="shipped/m30k --input data-bin/multi30k.en-de/raw/test.en",
)

if __name__ == "__main__":
    main(BENCHMARK)
