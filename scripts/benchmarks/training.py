"""Training speed and peak memory of whole models, by fairseq-train on real data; for translators, decoding as well.

Suites (the first system of each is the reference of the ratios):

  ptb        the papers' presets for Penn Treebank, with the same rows and window for all; DOC's network also with one
             softmax in place of its mixture, and with the plain loss in place of the fused one
  labels     AWD-LSTM's network for Penn Treebank with a tied, bilinear, dual and DRILL output layer
  mmlstm     AWD-LSTM-MoS and AWD-LSTM for Penn Treebank, on Major-Minor LSTMs and on LSTMs of the same widths
  wt103      the Major-Minor LSTM and the LSTM for WikiText-103, at the paper's 128 rows: 267,735 words, one softmax
  fairseq    fairseq's own lstm_lm against lstm_lm_awd: three layers of width 512, a tied softmax
  fpnn       the linear and rectifier networks for text8's words, by maximum likelihood and from 25 noise words
  rhn        the recurrent highway networks of depth 8 and width 890 for Penn Treebank
  reduced, mmlstm-reduced   small Penn Treebank models
  lstm          fairseq's lstm and the systems of the recipe multi30k: width 256, two layers, bidirectional encoder
  transformer   fairseq's transformer and ours with each output layer: width 256, three layers, shared embedding

Every system trains for a few updates in its own process, in both orders by turns, with the machine otherwise idle.
Speed is the median over the logged intervals of all its runs without the first interval of a run. Memory is the largest
of its runs: resident memory of the process on a CPU, allocated memory on a GPU. Translators then decode the test set
with beam 5 in one process, batch by batch by turns; every hypothesis is --length tokens long.

With --output-precision float32 bfloat16 every system runs with its output layer in both, by turns. Flags of
fairseq-train follow a --, such as -- --fp16. Writes lm_SUITE_DEVICE.md, translation_DEVICE.md or transformer_DEVICE.md,
and .json, with systems, precisions and names of further flags appended.
"""

import argparse
import statistics
import tempfile
from argparse import Namespace
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence, Tuple

import torch
from benchmark import by_turns, main, seconds_of, write_report
from fairseq import options
from fairseq.checkpoint_utils import load_model_ensemble_and_task
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.tasks import FairseqTask
from fairseq.utils import move_to_cuda
from speed_recipes import SUITES, only

import fairseq_plugins  # noqa: F401  registers the architectures
from fairseq_plugins.command_line import add_cpu, add_data, add_out, choose_device
from fairseq_plugins.console import Command, ProgramFailed, progress
from fairseq_plugins.data.pairs import split_languages
from fairseq_plugins.models.presets import ARCHITECTURES
from fairseq_plugins.ops.matmul import has_native_bfloat16
from fairseq_plugins.options import UserError, count, whole_number
from fairseq_plugins.processes import run_fairseq
from fairseq_plugins.recipes import training_arguments
from fairseq_plugins.recipes.recipe import Recipe, System
from fairseq_plugins.reports.report import Report
from fairseq_plugins.reports.tables import as_table
from fairseq_plugins.reports.training_log import figures_of, read_log

NUM_INTERVALS = 5
"""Logged intervals of a run. The first does not count."""


@dataclass(frozen=True)
class TrainingSpeed:
    """Speed and memory of a system.

    Attributes:
        words_per_second: median over the logged intervals of all its runs.
        peak_mib: maximum over its runs of resident memory, or of allocated memory on a GPU.
    """

    words_per_second: float
    peak_mib: float


def training_run(arguments: Sequence[str], *, log: Path) -> Tuple[List[float], float]:
    """Run ``fairseq-train`` in its own process. Returns words per second of the logged intervals without the first, and
    peak memory in MiB: resident memory on a CPU, allocated memory on a GPU.

    Raises:
        ProgramFailed: with the end of the log.
    """
    try:
        resident = run_fairseq("train", arguments, log=log)
    except ProgramFailed as failure:
        raise ProgramFailed(f"fairseq-train {' '.join(arguments)} failed:\n{failure}") from failure
    lines = read_log(log.read_text(encoding="utf-8", errors="replace"))
    speeds, free = (figures_of(lines, "train_inner", name) for name in ("wps", "gb_free"))
    return speeds[1:], allocated_mib(free) or resident


def timed_flags(num_updates: int) -> List[str]:
    """Flags of a run that is timed and saves nothing."""
    length = ["--max-update", str(num_updates), "--log-interval", str(max(1, num_updates // NUM_INTERVALS))]
    return [*length, "--no-save", "--disable-validation", "--distributed-world-size", "1"]


def measure_trainings(
    recipe: Recipe, *, data: str, num_updates: int, num_rounds: int, flags: Sequence[str] = ()
) -> Dict[str, TrainingSpeed]:
    """Speed and memory of the systems of a recipe by their labels.

    Every run has its own process. Rounds alternate in order. The machine should be idle otherwise.

    Args:
        recipe: all its systems are measured.
        data: directory that data-prep wrote.
        num_updates: updates of a run.
        num_rounds: runs of each system.
        flags: further flags of ``fairseq-train``.

    Raises:
        ProgramFailed: if a run fails.
    """
    speeds: Dict[str, List[float]] = {system: [] for system in recipe.systems}
    peaks: Dict[str, List[float]] = {system: [] for system in recipe.systems}
    for system in progress(by_turns(list(recipe.systems), num_rounds=num_rounds), unit="run"):
        with tempfile.TemporaryDirectory() as save_dir:
            more = [*timed_flags(num_updates), *flags]
            arguments = training_arguments(recipe, system, data=data, save_dir=save_dir, seed=1, more=more)
            of_run, peak = training_run(arguments, log=Path(save_dir) / "train.log")
        speeds[system] += of_run
        peaks[system].append(peak)
    return {
        recipe.label(system): TrainingSpeed(statistics.median(speeds[system]), max(peaks[system])) for system in speeds
    }


def allocated_mib(free_gibibytes: Sequence[float]) -> float:
    """Peak memory of the GPU, from values of its free memory. 0 without values."""
    if not free_gibibytes:
        return 0
    return torch.cuda.get_device_properties(0).total_memory / 2**20 - 1024 * min(free_gibibytes)


def as_markdown(found: Mapping[str, TrainingSpeed]) -> str:
    """Speed and memory, and their ratios to those of the first system.

    Memory has one decimal, as in fairseq's log.
    """
    reference = next(iter(found.values()))
    rows = []
    for name, figure in found.items():
        speed = figure.words_per_second / reference.words_per_second
        rows.append(
            (
                name,
                f"{figure.words_per_second:,.0f}",
                f"{speed:.2f}",
                f"{1 / speed:.2f}",
                f"{figure.peak_mib / 1024:,.1f} GiB",
                f"{figure.peak_mib / reference.peak_mib:.1f}",
            )
        )
    return as_table(["model", "words per second", "speed, ratio", "time, ratio", "peak memory", "ratio"], rows)


TRANSLATION = ("lstm", "transformer")
"""Suites of encoder-decoders. The first system of each is fairseq's own model."""


def in_output_precisions(recipe: Recipe, precisions: Sequence[str]) -> Recipe:
    """A recipe with each system in all precisions of the output layer, values of ``--output-precision``.

    fairseq's models and the plain loss have no such flag, so they appear once. Without precisions, all systems appear
    once.
    """
    variants: Dict[str, System] = {}
    for name, system in recipe.systems.items():
        if not precisions or not _has_precisions(recipe, name):
            variants[name] = system
            continue
        for precision in precisions:
            variants[f"{name}-{precision}"] = replace(
                system,
                flags={**system.flags, "output-precision": precision},
                label=f"{recipe.label(name)}, output in {precision}",
            )
    return replace(recipe, systems=variants)


def _has_precisions(recipe: Recipe, system: str) -> bool:
    flags = recipe.flags(system)
    return flags["arch"] in ARCHITECTURES and flags.get("output-loss") != "plain"


# Decoding with beam search.


def train_briefly(recipe: Recipe, *, data: str, folder: Path, flags: Sequence[str] = ()) -> Dict[str, str]:
    """Train each system for two updates. Returns checkpoints by label.

    Args:
        recipe: of the systems.
        data: directory that data-prep wrote.
        folder: directory of the checkpoints.
        flags: further flags of ``fairseq-train``.

    Raises:
        ProgramFailed: if a run fails.
    """
    checkpoints = {}
    for system in progress(recipe.systems, unit="model"):
        save_dir = folder / system
        save_dir.mkdir(parents=True)
        more = ["--max-update", "2", "--disable-validation", "--distributed-world-size", "1", *flags]
        arguments = training_arguments(recipe, system, data=data, save_dir=save_dir, seed=1, more=more)
        training_run(arguments, log=save_dir / "train.log")
        checkpoints[recipe.label(system)] = str(save_dir / "checkpoint_last.pt")
    return checkpoints


def measure_decoding(
    data: str, checkpoints: Mapping[str, str], *, num_rounds: int, length: int, device: str
) -> Dict[str, float]:
    """Sentences per second of each system. Every hypothesis has ``length`` tokens, so training plays no part.

    All systems translate the test set in this process and take turns after each batch, so that other load on the
    machine slows all of them alike. The first round warms up and does not count.
    """
    flags = f"--beam 5 --batch-size 64 --max-len-a 0 --max-len-b {length} --min-len {length} --path unused"
    parsed = options.parse_args_and_arch(options.get_generation_parser(), input_args=[data, *flags.split()])
    assert isinstance(parsed, Namespace)
    cfg = convert_namespace_to_omegaconf(parsed)
    decoders = {}
    for name, checkpoint in checkpoints.items():
        models, _, task = load_model_ensemble_and_task([checkpoint], arg_overrides={"data": data})
        assert task is not None
        for model in models:
            model.to(device).prepare_for_inference_(cfg)
        decoders[name] = (models, task, task.build_generator(models, cfg.generation))
    batches = _test_batches(next(iter(decoders.values()))[1], batch_size=cfg.dataset.batch_size)
    batches = [move_to_cuda(batch) if device == "cuda" else batch for batch in batches]
    seconds = dict.fromkeys(decoders, 0.0)
    turns = [(turn, batch) for turn in range(1 + num_rounds) for batch in range(len(batches))]
    for turn, batch in progress(turns, unit="batch"):
        for name in list(decoders)[:: 1 if (turn + batch) % 2 == 0 else -1]:
            models, task, generator = decoders[name]
            decode = partial(task.inference_step, generator, models, batches[batch])
            seconds[name] += seconds_of(decode, device=device) * (turn > 0)
    num_sentences = num_rounds * sum(batch["nsentences"] for batch in batches)
    return {name: num_sentences / total for name, total in seconds.items()}


def _test_batches(task: FairseqTask, *, batch_size: int) -> List[Dict[str, Any]]:
    """Batches of the test set in the order of the corpus."""
    task.load_dataset("test")
    iterator = task.get_batch_iterator(task.dataset("test"), max_sentences=batch_size)
    batches = iterator.next_epoch_itr(shuffle=False)
    assert batches is not None
    return list(batches)


def decoding_as_markdown(sentences_per_second: Mapping[str, float]) -> str:
    """Speed of decoding, and its ratio to that of the first system."""
    reference = next(iter(sentences_per_second.values()))
    rows = [(name, f"{speed:,.1f}", f"{speed / reference:.2f}") for name, speed in sentences_per_second.items()]
    return as_table(["model", "sentences per second", "ratio"], rows)


# The command line.

MIN_UPDATES = 10


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_data(parser)
    parser.add_argument("--suite", required=True, choices=list(SUITES), metavar="NAME", help=", ".join(SUITES))
    parser.add_argument(
        "--systems",
        nargs="+",
        action="extend",
        metavar="SYSTEM",
        help="only these of the suite, by the recipe's names (default: all)",
    )
    parser.add_argument(
        "--updates",
        type=whole_number(at_least=MIN_UPDATES),
        default=40,
        metavar="N",
        help=f"updates a run, at least {MIN_UPDATES} (default: 40)",
    )
    parser.add_argument(
        "--rounds", type=count, metavar="N", help="runs of each system (default: 4, or 3 for translators)"
    )
    parser.add_argument("--length", type=count, default=15, help="tokens of every hypothesis (default: %(default)s)")
    parser.add_argument(
        "--output-precision",
        nargs="+",
        action="extend",
        choices=["float32", "bfloat16"],
        default=[],
        help="of the output layers, in training and decoding; with both, every system is measured in each by turns. "
        "fairseq's own models and the plain loss stay as they are (default: the systems' own)",
    )
    add_cpu(parser)
    add_out(parser, help="directory for the report", default="results/benchmarks")


def run(args: argparse.Namespace) -> None:
    """Check the arguments, measure the suite, and write and print the report."""
    device = choose_device(args)
    args.rounds = args.rounds if args.rounds is not None else 3 if args.suite in TRANSLATION else 4
    if "bfloat16" in args.output_precision and not has_native_bfloat16(torch.device(device)):
        raise UserError(f"--output-precision bfloat16: this {device} has no matrix products in bfloat16: leave it out")
    if "--cpu" in args.forwarded:
        raise UserError("--cpu: give it before the --")
    if args.output_precision and any(word.startswith("--output-precision") for word in args.forwarded):
        raise UserError("--output-precision: give it either before the -- or after")
    suite = SUITES[args.suite]
    if unknown := set(args.systems or ()) - set(suite.systems):
        raise UserError(f"--systems {' '.join(sorted(unknown))}: choose among {' '.join(suite.systems)}")
    chosen = [name for name in suite.systems if args.systems is None or name in args.systems]
    recipe = in_output_precisions(only(suite, chosen), args.output_precision)
    translates = args.suite in TRANSLATION
    report = _report_translation(recipe, args, device=device) if translates else _report_training(recipe, args)
    conditions = {"num_threads": torch.get_num_threads(), "updates": args.updates, "rounds": args.rounds}
    report = replace(report, figures={**conditions, **report.figures})
    stem = {"lstm": "translation", "transformer": "transformer"}.get(args.suite, f"lm_{args.suite}")
    further = [flag.removeprefix("--") for flag in args.forwarded]
    write_report(report, args, stem, device, *(chosen if args.systems else ()), *args.output_precision, *further)


def _measure(recipe: Recipe, args: argparse.Namespace) -> Dict[str, TrainingSpeed]:
    return measure_trainings(
        recipe,
        data=str(args.data),
        num_updates=args.updates,
        num_rounds=args.rounds,
        flags=_flags(args),
    )


def _flags(args: argparse.Namespace) -> List[str]:
    return [*(["--cpu"] if args.cpu else []), *args.forwarded]


def _report_training(recipe: Recipe, args: argparse.Namespace) -> Report:
    found = _measure(recipe, args)
    return Report(
        text=f"{as_markdown(found)}\n\nMedians of {args.rounds} interleaved runs of {args.updates} updates, "
        f"threads: {torch.get_num_threads()}.",
        figures={"models": {name: asdict(speed) for name, speed in found.items()}},
    )


def _report_translation(recipe: Recipe, args: argparse.Namespace, *, device: str) -> Report:
    data = str(args.data)
    split_languages(args.data, "test")  # an error where there is no test set
    with tempfile.TemporaryDirectory() as folder:
        # first, so that a system that does not train ends the command before the others are measured
        checkpoints = train_briefly(recipe, data=data, folder=Path(folder), flags=_flags(args))
        training = _measure(recipe, args)
        decoding = measure_decoding(data, checkpoints, num_rounds=args.rounds, length=args.length, device=device)
    parts = [
        "Training (target tokens):",
        as_markdown(training),
        f"Decoding, beam 5, {args.length} tokens a hypothesis:",
        decoding_as_markdown(decoding),
        f"Training: medians of {args.rounds} interleaved runs of {args.updates} updates. Decoding: the test set, "
        f"{args.rounds} times, in one process, batch by batch by turns. Threads: {torch.get_num_threads()}.",
    ]
    return Report(
        text="\n\n".join(parts),
        figures={
            "length": args.length,
            "training": {name: asdict(speed) for name, speed in training.items()},
            "sentences_per_second": decoding,
        },
    )


BENCHMARK = Command(
    add_arguments=_add_arguments,
    run=run,
    description=__doc__ or "",
    example="data-bin/ptb --suite reduced --updates 40 --out benchmarks",
    forwards_to="fairseq-train",
)

if __name__ == "__main__":
    main(BENCHMARK)
