"""Speed of this package on a GPU, a JSON line a measurement: launches, the fused loss, whole models, profiles.

Each line has name, figures, device, torch, commit, corpora and date. A measurement that FILE already has under the same
conditions is skipped, so the same command continues where it stopped. One that failed has its error in place of
figures, and is tried again. Two commits may share a file.

  launch           microseconds of a kernel launch, from Python and in a CUDA graph, and bandwidth of a copy
  loss CASE DTYPE  the fused loss, on its own kernels and on plain torch, and its three products alone, forward and
                   backward, in milliseconds: four cases of results/benchmarks, and 10,002 and 10,016 words
  translation ...  training of lstm_encdec, lstm_encdec_doc and fairseq's lstm, with the recipe's adam and with l2_adam
  lm ...           training of language models with the rows and windows of their papers, and of fairseq's lstm_lm
  with graphs ...  the same of models whose loops can be CUDA graphs, with --cuda-graphs auto
  profile ...      time by op and number of launches in five updates

Models train on --text and --pairs, folders that data-prep wrote, or on random words. Nothing is downloaded.
"""

import argparse
import datetime
import json
import statistics
import tempfile
from contextlib import contextmanager
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import torch
from benchmark import main, seconds_of
from fairseq import options, utils
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import make_builder
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.tasks import setup_task
from fairseq.trainer import Trainer
from output_layer import Case, Inputs, allocated_peak, floor, fused, seconds_by_turns
from speed_recipes import SPEED_PRESETS_PTB
from torch.profiler import ProfilerActivity, profile
from training import NUM_INTERVALS, timed_flags, training_run

import fairseq_plugins  # noqa: F401  registers the architectures
from fairseq_plugins.command_line import add_cpu
from fairseq_plugins.console import Command
from fairseq_plugins.files import data_folder, output_file
from fairseq_plugins.models.presets import ARCHITECTURES, as_arguments
from fairseq_plugins.ops.kernel_choice import choose_kernels
from fairseq_plugins.ops.kernels import PLAIN
from fairseq_plugins.options import UserError, count
from fairseq_plugins.recipes import Recipe, find_recipe, training_arguments
from fairseq_plugins.reports.provenance import describe_code
from fairseq_plugins.reports.report import json_text

Figures = Dict[str, Any]


@contextmanager
def tf32(kind: str) -> Iterator[None]:
    """Within the context, float32 products round their operands to TF32 if ``kind`` is "TF32"."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    try:
        torch.set_float32_matmul_precision("high" if kind == "TF32" else "highest")
        torch.backends.cudnn.allow_tf32 = kind == "TF32"
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


def summary(values: Sequence[float]) -> Figures:
    """Median and spread of repetitions."""
    return {"median": statistics.median(values), "lowest": min(values), "highest": max(values), "number": len(values)}


# Launches.

NUM_LAUNCHES = 1000


def measure_launches(args: argparse.Namespace) -> Figures:
    """Microseconds of a kernel of one element, launched one by one and, on a GPU, in a graph; a copy in GB/s."""
    x = torch.zeros(1, device=args.device)

    def launch() -> None:
        for _ in range(NUM_LAUNCHES):
            x.add_(1)

    runs: Dict[str, Callable[[], object]] = {"host_us": launch}
    launch()
    if args.device == "cuda":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            launch()
        runs["graph_us"] = graph.replay
    figures: Figures = {
        name: summary([1e6 * seconds_of(run, device=args.device) / NUM_LAUNCHES for _ in range(args.repetitions)])
        for name, run in runs.items()
    }
    source = torch.zeros(2**16 if args.small else 2**28, device=args.device)
    target = torch.empty_like(source)
    seconds = [seconds_of(lambda: target.copy_(source), device=args.device) for _ in range(1 + args.repetitions)]
    figures["copy_gb_per_s"] = summary([2 * source.nbytes / 1e9 / value for value in seconds[1:]])
    return figures


# The fused loss.

CASES = ["10000,20,280,420", "10000,20,280,1680", "33280,20,280,280", "33280,20,280,1120"]
CASES += ["10002,20,280,420", "10016,20,280,420"]
SMALL_CASE = "200,3,16,40"
PRECISIONS: Dict[str, Tuple[torch.dtype, Optional[torch.dtype]]] = {
    "float32": (torch.float32, None),
    "TF32": (torch.float32, None),
    "bfloat16 chunks": (torch.float32, torch.bfloat16),
    "bfloat16 inputs": (torch.bfloat16, None),
    "float16 inputs": (torch.float16, None),
}
"""Dtypes of the inputs and of chunks. The third is ``--output-precision bfloat16``."""


def measure_loss(args: argparse.Namespace, *, case: str, precision: str) -> Figures:
    """Milliseconds of the fused loss, of the same on plain torch, and of the products, by turns; its peak on a GPU."""
    dtype, chunk_dtype = PRECISIONS[precision]
    methods: Dict[str, Callable[[Inputs], None]] = {
        "loss": partial(fused, chunk_dtype=chunk_dtype),
        "plain": partial(fused, chunk_dtype=chunk_dtype, kernels=PLAIN),
        "products": partial(floor, chunk_dtype=chunk_dtype),
    }
    with tf32(precision):
        x = Inputs(Case.parse(SMALL_CASE if args.small else case), device=torch.device(args.device), dtype=dtype)
        times = seconds_by_turns(x, methods, num_repetitions=args.repetitions)
        peak = allocated_peak(methods["loss"], x) if x.weight.is_cuda else None
    figures: Figures = {f"{name}_ms": summary([1e3 * value for value in values]) for name, values in times.items()}
    products = figures["products_ms"]["median"]
    ratios = {f"{name} / products": figures[f"{name}_ms"]["median"] / products for name in ("loss", "plain")}
    return {**figures, **ratios, "kernels": choose_kernels(x.weight.device).name, "peak_bytes": peak}


# Training.

PTB, MULTI30K = SPEED_PRESETS_PTB, find_recipe("multi30k")
LANGUAGE_MODELS = {
    **{name: f"lstm_lm_{name}_ptb" for name in ("awd", "mos", "doc")},
    "variational": "lstm_lm_variational_medium_ptb",
    "rhn": "rhn_lm_ptb",
    "mogrifier": "mogrifier_lm_ptb",
    "fairseq lstm_lm": "fairseq",
}
"""Systems of PTB by the names of their measurements."""
TRANSLATORS = {"lstm_encdec": "encdec", "lstm_encdec_doc": "doc", "fairseq lstm": "fairseq"}
"""Systems of MULTI30K."""
L2_ADAM = ["--optimizer", "l2_adam"]
NUM_UPDATES = 50
SMALL_WIDTH = 16


def arguments_of(
    args: argparse.Namespace, recipe: Recipe, system: str, more: Sequence[str], *, save_dir: str
) -> List[str]:
    """Arguments of ``fairseq-train``. With ``--small`` all layers are narrow."""
    own = recipe.flags(system)
    preset = ARCHITECTURES.get(str(own["arch"]))
    of_preset = {} if preset is None else {name.replace("_", "-"): value for name, value in preset.model.items()}
    widths: Dict[str, Any] = {}
    for flag, value in {**of_preset, **own}.items() if args.small else ():
        if flag == "hidden-sizes":
            widths[flag] = " ".join([str(SMALL_WIDTH)] * len(str(value).split()))
        elif flag.endswith(("embed-dim", "hidden-size")):
            widths[flag] = SMALL_WIDTH
    device = ["--cpu"] if args.device == "cpu" else []
    flags = [*as_arguments(widths), *more, *device]
    given = args.pairs if recipe is MULTI30K else args.text
    data = str(given) if given else random_corpus(pairs=recipe is MULTI30K, small=args.small)
    return training_arguments(recipe, system, data=data, save_dir=save_dir, seed=1, more=flags)


def measure_training(args: argparse.Namespace, *, recipe: Recipe, system: str, more: Sequence[str] = ()) -> Figures:
    """Words per second of the logged intervals of a run without the first, and peak memory."""
    num_updates = 2 * NUM_INTERVALS if args.small else NUM_UPDATES
    with tempfile.TemporaryDirectory() as folder:
        arguments = arguments_of(args, recipe, system, [*more, *timed_flags(num_updates)], save_dir=folder)
        speeds, peak_mib = training_run(arguments, log=Path(folder) / "train.log")
    return {"words_per_second": summary(speeds), "peak_mib": peak_mib}


@lru_cache(maxsize=None)
def _temporary_folder() -> "tempfile.TemporaryDirectory[str]":
    return tempfile.TemporaryDirectory(prefix="random-words-")


def random_corpus(*, pairs: bool, small: bool) -> str:
    """A folder of random words with Zipf's frequencies, binarised: one text, or pairs of German and English.

    A model trains on it at the speed of a real corpus with that vocabulary. Perplexities mean nothing.
    """
    folder = Path(_temporary_folder().name) / ("pairs" if pairs else "text")
    if folder.exists():
        return str(folder)
    folder.mkdir()
    num_words, num_lines = (100, 2400) if small else (10_000, 24_000)
    generator = torch.Generator().manual_seed(0)
    dictionary = Dictionary()
    for number in range(num_words - len(dictionary)):
        dictionary.add_symbol(f"w{number}", n=num_words - number)
    frequencies = 1 / torch.arange(1, num_words - dictionary.nspecial + 1)
    for split, size in (("train", num_lines), ("valid", 100), ("test", 100)):
        lengths = torch.randint(5, 22, (size,), generator=generator).tolist() if pairs else [25] * size
        for side in (".de", ".en") if pairs else ("",):
            dictionary.save(str(folder / f"dict{side}.txt"))
            name = folder / (f"{split}.de-en{side}" if side else split)
            builder = make_builder(f"{name}.bin", impl="mmap", vocab_size=len(dictionary))
            drawn = torch.multinomial(frequencies, sum(lengths), replacement=True, generator=generator)
            for words in (drawn + dictionary.nspecial).split(lengths):
                builder.add_item(torch.cat([words, torch.tensor([dictionary.eos()])]).int())
            builder.finalize(f"{name}.idx")
    return str(folder)


# Profiles.

NUM_PROFILED, NUM_ROWS = 5, 20


def measure_profile(args: argparse.Namespace, *, recipe: Recipe, system: str) -> Figures:
    """Table of torch.profiler over five updates, by time on the device, and launches an update."""
    one_process = ["--no-save", "--distributed-world-size", "1"]
    arguments = arguments_of(args, recipe, system, one_process, save_dir=_temporary_folder().name)
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), arguments))
    utils.import_user_module(cfg.common)
    task = setup_task(cfg.task)
    trainer = Trainer(cfg, task, task.build_model(cfg.model), task.build_criterion(cfg.criterion))
    task.load_dataset("train")
    batches = islice(trainer.get_train_iterator(1).next_epoch_itr(shuffle=False), 3 + NUM_PROFILED)
    on_gpu = args.device == "cuda"
    samples = [[batch] for batch in batches]
    trainer.begin_epoch(1)
    for sample in samples[:3]:
        trainer.train_step(sample)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with profile(activities=activities) as profiler:
        elapsed = seconds_of(lambda: [trainer.train_step(sample) for sample in samples[3:]], device=args.device)
    averages = profiler.key_averages()
    order = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    num_launches = sum(event.count for event in averages if event.key in ("cudaLaunchKernel", "cuLaunchKernelEx"))
    return {
        "ms_an_update": 1e3 * elapsed / NUM_PROFILED,
        "launches_an_update": num_launches / NUM_PROFILED,
        "table": averages.table(sort_by=order, row_limit=NUM_ROWS).splitlines(),
    }


# The command line.

Measurement = Callable[[argparse.Namespace], Figures]

MEASUREMENTS: Dict[str, Measurement] = {
    "launch": measure_launches,
    **{
        f"loss {case} {precision}": partial(measure_loss, case=case, precision=precision)
        for case in CASES
        for precision in PRECISIONS
    },
    **{
        f"translation {name}{label}": partial(measure_training, recipe=MULTI30K, system=system, more=more)
        for label, more in (("", []), (", l2_adam", L2_ADAM))
        for name, system in TRANSLATORS.items()
    },
    **{f"lm {name}": partial(measure_training, recipe=PTB, system=system) for name, system in LANGUAGE_MODELS.items()},
    **{
        f"with graphs {name}": partial(
            measure_training, recipe=PTB, system=LANGUAGE_MODELS[name], more=["--cuda-graphs", "auto"]
        )
        for name in ("variational", "rhn", "mogrifier")
    },
    "profile lstm_encdec": partial(measure_profile, recipe=MULTI30K, system=TRANSLATORS["lstm_encdec"]),
    "profile doc": partial(measure_profile, recipe=PTB, system=LANGUAGE_MODELS["doc"]),
}


def read_measurements(path: Path) -> List[Mapping[str, Any]]:
    """The lines of a file of measurements; none if there is no file.

    Raises:
        UserError: if a line is not one of them.
    """
    found = []
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    for number, line in enumerate(lines, start=1):
        try:
            found.append(json.loads(line))
            MEASUREMENTS[found[-1]["name"]]
        except (ValueError, TypeError, KeyError) as error:
            raise UserError(f"{path}, line {number}: no measurement of this script: delete the line") from error
    return found


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=output_file, metavar="FILE.jsonl", help="file that gets a line a measurement")
    parser.add_argument(
        "--only",
        nargs="+",
        action="extend",
        metavar="NAME",
        help="only measurements whose name begins with one of these",
    )
    parser.add_argument("--list", action="store_true", help="print the names of all measurements")
    parser.add_argument("--text", type=data_folder, metavar="DATA", help="corpus of the language models")
    parser.add_argument("--pairs", type=data_folder, metavar="DATA", help="corpus of the encoder-decoders")
    parser.add_argument("--repetitions", type=count, default=15, help="timings of an op (default: %(default)s)")
    parser.add_argument("--small", action="store_true", help="tiny sizes, to try the script; figures mean nothing")
    add_cpu(parser)


def run(args: argparse.Namespace) -> None:
    """Make all measurements that the file lacks."""
    chosen = [name for name in MEASUREMENTS if not args.only or name.startswith(tuple(args.only))]
    if not chosen:
        raise UserError(f"--only {' '.join(args.only)}: no measurement has such a name: see --list")
    if args.list:
        print("\n".join(chosen))
        return
    if args.out is None:
        raise UserError("give --out FILE.jsonl")
    if not args.cpu and not torch.cuda.is_available():
        raise UserError("torch finds no GPU here: give --cpu --small to try the script")
    args.device = "cpu" if args.cpu else "cuda"
    made_by = {
        "device": "cpu" if args.cpu else torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "commit": describe_code(),
        "corpora": [str(folder or "random words") for folder in (args.text, args.pairs)],
        "small": args.small,
        "repetitions": args.repetitions,
    }
    done = {
        line["name"]
        for line in read_measurements(args.out)
        if "error" not in line and all(line.get(key) == value for key, value in made_by.items())
    }
    failed = []
    for name in chosen:
        if name in done:
            continue
        date = datetime.datetime.now().isoformat(timespec="seconds")
        try:
            found: Figures = {"figures": MEASUREMENTS[name](args)}
        except Exception as error:  # the next measurement may work
            found = {"error": f"{type(error).__name__}: {error}"[-500:]}
            failed.append(name)
        with args.out.open("a", encoding="utf-8") as file:
            file.write(json_text({"name": name, **found, **made_by, "date": date}) + "\n")
        print(name, "failed" if "error" in found else "done", flush=True)
    if failed:
        raise UserError(f"{', '.join(failed)}: failed, see {args.out}")


BENCHMARK = Command(
    add_arguments=_add_arguments,
    run=run,
    description=__doc__ or "",
    example="--out gpu.jsonl --only launch loss",
)

if __name__ == "__main__":
    main(BENCHMARK)
