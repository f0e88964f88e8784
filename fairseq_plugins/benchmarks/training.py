"""Speed and memory of short runs of ``fairseq-train``, and speed of decoding."""

import argparse
import statistics
import sys
import tempfile
import time
from argparse import Namespace
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence

import torch
from fairseq import options
from fairseq.checkpoint_utils import load_model_ensemble_and_task
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.tasks import FairseqTask
from fairseq.utils import move_to_cuda
from torch import Tensor
from torch.utils.benchmark import Timer
from tqdm import tqdm

import fairseq_plugins  # noqa: F401  registers the architectures
from fairseq_plugins.command_line import ProgramFailed, add_cpu, add_data, add_out, choose_device
from fairseq_plugins.models.presets import ARCHITECTURES
from fairseq_plugins.ops.matmul import has_native_bfloat16, matmul
from fairseq_plugins.options import UserError, check_at_least_one
from fairseq_plugins.processes import run_fairseq
from fairseq_plugins.recipes import find_recipe, training_arguments
from fairseq_plugins.recipes.recipe import Recipe, System
from fairseq_plugins.reports.tables import as_table
from fairseq_plugins.reports.training_log import read_free_memory, read_log, read_speeds, read_update_rates

NUM_INTERVALS = 5
"""Logged intervals of a run. The first does not count."""


@dataclass(frozen=True)
class TrainingSpeed:
    """Speed and memory of a system.

    Attributes:
        words_per_second: median over the logged intervals of all its runs.
        peak_mib: maximum over its runs of resident memory, or of allocated memory on a GPU.
        updates_per_second: median over the same intervals, or 0 if it is not known.
    """

    words_per_second: float
    peak_mib: float
    updates_per_second: float = 0.0


def train(arguments: Sequence[str], *, log: Path) -> float:
    """Run ``fairseq-train`` in its own process, and return its peak resident memory in MiB.

    Raises:
        ProgramFailed: with the end of the log.
    """
    try:
        return run_fairseq("train", arguments, log=log)
    except ProgramFailed as failure:
        raise ProgramFailed(f"fairseq-train {' '.join(arguments)} failed:\n{failure}") from failure


def measure_trainings(
    recipe: Recipe, systems: Sequence[str], *, data: str, num_updates: int, num_rounds: int, flags: Sequence[str] = ()
) -> Dict[str, TrainingSpeed]:
    """Speed and memory of systems by their labels.

    Every run has its own process. Rounds alternate in order. The machine should be idle otherwise.

    Args:
        recipe: recipe of the systems.
        systems: their names in the recipe.
        data: directory that data-prep wrote.
        num_updates: updates of a run.
        num_rounds: runs of each system.
        flags: further flags of ``fairseq-train``.

    Raises:
        ProgramFailed: if a run fails.
    """
    turns = [system for turn in range(num_rounds) for system in (systems if turn % 2 == 0 else systems[::-1])]
    speeds: Dict[str, List[float]] = {system: [] for system in systems}
    rates: Dict[str, List[float]] = {system: [] for system in systems}
    peaks: Dict[str, List[float]] = {system: [] for system in systems}
    for system in tqdm(turns, unit="run", disable=not sys.stderr.isatty()):
        with tempfile.TemporaryDirectory() as save_dir:
            limits = ["--max-update", str(num_updates), "--no-save", "--disable-validation"]
            logged = ["--log-interval", str(max(1, num_updates // NUM_INTERVALS))]
            more = [*limits, *logged, "--distributed-world-size", "1", *flags]
            arguments = training_arguments(recipe, system, data=data, save_dir=save_dir, seed=1, more=more)
            log = Path(save_dir) / "train.log"
            resident = train(arguments, log=log)
            text = read_log(log)
        speeds[system] += read_speeds(text)[1:]
        rates[system] += read_update_rates(text)[1:]
        peaks[system].append(allocated_mib(read_free_memory(text)) or resident)
    return {
        recipe.label(system): TrainingSpeed(
            statistics.median(speeds[system]), max(peaks[system]), statistics.median(rates[system])
        )
        for system in systems
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


def products_as_markdown(products: Mapping[str, float], training: Mapping[str, TrainingSpeed]) -> str:
    """Speed of the matrix products alone, and the share of it that training reaches."""
    rows = [
        (name, f"{speed:,.0f}", f"{training[name].words_per_second / speed:.2f}") for name, speed in products.items()
    ]
    return as_table(["model", "matrix products alone in float32, words per second", "share reached"], rows)


@dataclass(frozen=True)
class Suite:
    """Systems of a recipe that are compared. The first is the reference of the ratios.

    Attributes:
        recipe_name: name of the recipe.
        systems: their names in the recipe. Empty takes all.
    """

    recipe_name: str
    systems: Sequence[str] = ()

    @property
    def recipe(self) -> Recipe:
        """The recipe."""
        return find_recipe(self.recipe_name)

    @property
    def system_names(self) -> Sequence[str]:
        """Names of the systems in the recipe."""
        return self.systems or list(self.recipe.systems)


def in_output_precisions(recipe: Recipe, systems: Sequence[str], precisions: Sequence[str]) -> Recipe:
    """A recipe of the given systems, each in all precisions of the output layer.

    fairseq's models and the plain loss have no ``--output-precision``, so they appear once. Without precisions, all
    systems appear once.

    Args:
        recipe: recipe of the systems.
        systems: their names in the recipe.
        precisions: values of ``--output-precision``.

    Raises:
        UserError: if the recipe has no such system.
    """
    variants: Dict[str, System] = {}
    for name in systems:
        system = recipe.system(name)
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
    model = recipe.settings(system)
    return model["arch"] in ARCHITECTURES and model.get("output_loss") != "plain"


# Arguments that the benchmarks of training share.

MIN_UPDATES = 10


def add_training_limits(
    parser: argparse.ArgumentParser, *, suites: Mapping[str, Suite], written_by: str, num_rounds: int
) -> None:
    """Declare DATA, ``--suite``, ``--updates``, ``--rounds``, ``--output-precision``, ``--cpu`` and ``--out``.

    Args:
        parser: parser of the command.
        suites: suites by value of ``--suite``.
        written_by: command that writes the data.
        num_rounds: default of ``--rounds``.
    """
    add_data(parser, written_by=written_by)
    parser.add_argument("--suite", required=True, choices=list(suites), metavar="NAME", help=", ".join(suites))
    parser.add_argument(
        "--updates", type=int, default=40, metavar="N", help=f"updates a run, at least {MIN_UPDATES} (default: 40)"
    )
    parser.add_argument(
        "--rounds", type=int, default=num_rounds, metavar="N", help="runs of each system (default: %(default)s)"
    )
    parser.add_argument(
        "--output-precision",
        nargs="+",
        action="extend",
        choices=["float32", "bfloat16"],
        default=[],
        help="of the output layers, in training and decoding; of several, every system is measured in each by turns. "
        "fairseq's own models and the plain loss have none and stay as they are (default: the systems' own)",
    )
    add_cpu(parser)
    add_out(parser, help="directory for the report", default="results/benchmarks")


def check_training_limits(args: argparse.Namespace) -> None:
    """Check the arguments of :func:`add_training_limits`.

    Raises:
        UserError: on too few updates or rounds, or on a precision that the device does not support.
    """
    if args.updates < MIN_UPDATES:
        raise UserError(f"--updates {args.updates}: give at least {MIN_UPDATES}")
    check_at_least_one(args.rounds, flag="--rounds")
    device = choose_device(args)
    if "bfloat16" in args.output_precision and not has_native_bfloat16(torch.device(device)):
        raise UserError(f"--output-precision bfloat16: this {device} has no matrix products in bfloat16: leave it out")


def measured_with(args: argparse.Namespace) -> Dict[str, int]:
    """Conditions of a measurement, for JSON. Training uses as many threads as torch does here."""
    return {"num_threads": torch.get_num_threads(), "updates": args.updates, "rounds": args.rounds}


# Language models.

SUITES: Dict[str, Suite] = {
    **{name: Suite(f"speed_{name}") for name in ("ptb", "wt2", "labels", "mmlstm", "wt103", "fpnn", "host")},
    "rhn": Suite("speed_presets_ptb", ["rhn_lm_ptb", "rhn_lm_tied_ptb"]),
    "reduced": Suite("reduced", ["tied", "mos", "doc"]),
    "labels-reduced": Suite(
        "reduced", ["tied", "full", "bilinear", "dual", "drill1", "drill2", "drill3", "drill4", "standard"]
    ),
    "mmlstm-reduced": Suite("reduced", ["tied", "9:1", "7:3", "5:5", "mos", "mmlstm-mos", "mmlstm-doc"]),
}
"""Suites by name. Models of a suite share data, and rows and window if their recipe has them."""


# Encoder-decoders against those of fairseq: training, and decoding with beam search.

TRANSLATION_SUITES = {"lstm": Suite("multi30k"), "transformer": Suite("multi30k_transformer")}
"""Suites by name. The first system of each is fairseq's own model."""


def train_briefly(
    recipe: Recipe, systems: Sequence[str], *, data: str, folder: Path, flags: Sequence[str] = ()
) -> Dict[str, str]:
    """Train each system for two updates. Returns checkpoints by label.

    Args:
        recipe: recipe of the systems.
        systems: their names in the recipe.
        data: directory that data-prep wrote.
        folder: directory of the checkpoints.
        flags: further flags of ``fairseq-train``.

    Raises:
        ProgramFailed: if a run fails.
    """
    checkpoints = {}
    for system in tqdm(systems, unit="model", disable=not sys.stderr.isatty()):
        save_dir = folder / system
        save_dir.mkdir(parents=True)
        more = ["--max-update", "2", "--disable-validation", "--distributed-world-size", "1", *flags]
        arguments = training_arguments(recipe, system, data=data, save_dir=str(save_dir), seed=1, more=more)
        train(arguments, log=save_dir / "train.log")
        checkpoints[recipe.label(system)] = str(save_dir / "checkpoint_last.pt")
    return checkpoints


def speed_of_products(checkpoint: str, *, device: str) -> float:
    """Target words per second if training consisted of matrix products alone, in float32, at the speed of large ones.

    Each matrix is multiplied once forward and twice backward for each target word, or for a source word in its place.
    That of an output layer with J experts is multiplied J times as often. Products of attention with the annotations
    are left out. They are below 2 %.
    """
    model = torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True)["model"]
    num_experts = next((prior.size(0) for name, prior in model.items() if name.endswith("output.prior.weight")), 1)
    weights_per_word = sum(
        weight.numel() * (num_experts if name.endswith("output.projection.weight") else 1)
        for name, weight in model.items()
        if weight.dim() == 2 and "embed" not in name
    )
    return _multiply_adds_per_second(device) / (3 * weights_per_word)


def _multiply_adds_per_second(device: str) -> float:
    size = 2048
    a = b = torch.randn(size, size, device=device)
    timer = Timer("matmul(a, b)", globals={"matmul": matmul, "a": a, "b": b}, num_threads=torch.get_num_threads())
    return size**3 / timer.blocked_autorange(min_run_time=2).median


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
    for turn, batch in tqdm(turns, unit="batch", disable=not sys.stderr.isatty()):
        for name in list(decoders)[:: 1 if (turn + batch) % 2 == 0 else -1]:
            models, task, generator = decoders[name]
            start = time.perf_counter()
            task.inference_step(generator, models, batches[batch])
            if device == "cuda":
                torch.cuda.synchronize()
            seconds[name] += (time.perf_counter() - start) * (turn > 0)
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


# Matrix products of recurrent highway networks alone, in their shapes and order.

MIN_SECONDS = 5.0
"""Duration of a measurement at least."""


@dataclass(frozen=True)
class HighwayProducts:
    """Products with the recurrent matrices of one layer in one window, forward and backward.

    Attributes:
        num_rows: B, rows of a batch.
        num_steps: T, time steps.
        width: D, width of the layer.
        depth: micro-layers, each with a matrix (2 D, D).
    """

    num_rows: int
    num_steps: int
    width: int
    depth: int

    def operands(self, device: str) -> Dict[str, List[Tensor]]:
        """Random matrices (2 D, D), states (T * B, D) and gradients (T * B, 2 D), one of each for a micro-layer."""
        num_places = self.num_steps * self.num_rows
        shapes = {
            "matrices": (2 * self.width, self.width),
            "states": (num_places, self.width),
            "gradients": (num_places, 2 * self.width),
        }
        return {name: [torch.randn(shape, device=device) for _ in range(self.depth)] for name, shape in shapes.items()}

    def run(self, operands: Dict[str, List[Tensor]]) -> None:
        """Compute the products of a window: step by step, except for the gradients of the matrices."""
        matrices, states, gradients = (operands[name] for name in ("matrices", "states", "gradients"))
        for t in range(self.num_steps):
            rows = slice(t * self.num_rows, (t + 1) * self.num_rows)
            for matrix, state in zip(matrices, states):
                matmul(state[rows], matrix.t())
        for t in reversed(range(self.num_steps)):
            rows = slice(t * self.num_rows, (t + 1) * self.num_rows)
            for matrix, gradient in zip(matrices, gradients):
                matmul(gradient[rows], matrix)
        for state, gradient in zip(states, gradients):
            matmul(gradient.t(), state)

    def words_per_second(self, device: str) -> float:
        """Words per second if training consisted of these products alone."""
        names = {"products": self, "operands": self.operands(device)}
        timer = Timer("products.run(operands)", globals=names, num_threads=torch.get_num_threads())
        return self.num_rows * self.num_steps / timer.blocked_autorange(min_run_time=MIN_SECONDS).median


def speed_of_highway_products(recipe: Recipe, systems: Sequence[str], *, device: str) -> Dict[str, float]:
    """Words per second of the products of each system with one recurrent highway layer, by its label.

    Args:
        recipe: recipe of the systems.
        systems: their names in the recipe. Systems with another cell or more layers are left out.
        device: "cpu" or "cuda".
    """
    found = {}
    for system in systems:
        settings = recipe.settings(system)
        if settings.get("rnn_cell") != "rhn" or not str(settings["hidden_sizes"]).isdecimal():
            continue
        products = HighwayProducts(
            num_rows=int(settings["batch_size"]),
            num_steps=int(settings["tokens_per_sample"]),
            width=int(settings["hidden_sizes"]),
            depth=int(settings["recurrence_depth"]),
        )
        found[recipe.label(system)] = products.words_per_second(device)
    return found
