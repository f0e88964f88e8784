#!/usr/bin/env python3
"""Speed of the encoder-decoders against fairseq's own, on Multi30k: training, and decoding with beam 5.

Suites (the first system of each is the reference of the ratios):

  lstm          fairseq's `lstm` and the systems of scripts/recipes/translation/multi30k.sh: width 256, two layers,
                bidirectional encoder
  transformer   fairseq's `transformer` and those of multi30k_transformer.sh: width 256, three layers, shared embedding

All have the same batches. Each trains in a process of its own, in both orders by turns, with the machine otherwise
idle; all translate in one process, batch by batch by turns. All decode the same number of steps: every hypothesis is
made --length tokens long. The second table of training, of the lstm suite, compares with the products with the model's
matrices alone, were each as fast as a large one by the fastest kernel at hand. Writes translation_cpu.md and .json, or
transformer_cpu (on a GPU _cuda), with the names of --systems appended.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Dict, Iterable, Sequence

import torch
from fairseq import options
from fairseq.checkpoint_utils import load_model_ensemble_and_task
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.utils import move_to_cuda
from provenance import provenance
from torch.utils.benchmark import Timer
from tqdm import tqdm
from training_speed import as_markdown, measure_trainings, recipe

import fairseq_plugins  # noqa: F401
from fairseq_plugins.cli import quiet_host_logging
from fairseq_plugins.ops.matmul import matmul

RECIPES = {"lstm": "translation/multi30k.sh", "transformer": "translation/multi30k_transformer.sh"}
SYSTEMS = {
    "lstm": {
        "fairseq lstm": "host",
        "lstm_encdec, no input feeding": "encdec-nofeed",
        "lstm_encdec": "encdec",
        "lstm_encdec_mos": "mos",
        "lstm_encdec_doc": "doc",
        "mmlstm_encdec": "mmlstm",
    },
    "transformer": {
        "fairseq transformer, tied": "host",
        "transformer_full, tied": "tied",
        **{f"transformer_{layer}": layer for layer in ("bilinear", "dual", "drill", "mos", "doc")},
    },
}


def train_briefly(suite: str, systems: Dict[str, str], data: str, work: str) -> Dict[str, str]:
    """A checkpoint of each system, two updates old."""
    for system in systems.values():
        command = recipe(RECIPES[suite], data, system)(f"{work}/{system}", [])
        flags = ["--max-update", "2", "--disable-validation"]
        subprocess.run([*command, *flags], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return {name: f"{work}/{system}/checkpoint_last.pt" for name, system in systems.items()}


def speed_of_products(checkpoint: str) -> float:
    """Target words per second, if training were the products with its matrices alone, each as fast as a large one.

    A matrix takes part once forward and twice backward, for every target word or for a source word each; the one of
    an output layer with J experts J times. Attention's products with the annotations, below 2 %, are left out.
    """
    model = torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True)["model"]
    num_experts = next((prior.size(0) for name, prior in model.items() if name.endswith("output.prior.weight")), 1)
    weights_per_word = sum(
        weight.numel() * (num_experts if name.endswith("output.projection.weight") else 1)
        for name, weight in model.items()
        if weight.dim() == 2 and "embed" not in name
    )
    return _multiply_adds_per_second() / (3 * weights_per_word)


def _multiply_adds_per_second(size: int = 2048) -> float:
    a = b = torch.randn(size, size, device="cuda" if torch.cuda.is_available() else "cpu")
    timer = Timer("matmul(a, b)", globals={"matmul": matmul, "a": a, "b": b}, num_threads=torch.get_num_threads())
    return size**3 / timer.blocked_autorange(min_run_time=2).median


def measure_decoding(data: str, checkpoints: Dict[str, str], *, num_rounds: int, length: int) -> Dict[str, float]:
    """Sentences per second of each system; what the models have learned plays no part.

    All translate the test set in this process, batch by batch by turns, so that what else the machine does slows all
    alike; the first round warms up and is not counted.
    """
    flags = f"--beam 5 --batch-size 64 --max-len-a 0 --max-len-b {length} --min-len {length} --path unused"
    cfg = convert_namespace_to_omegaconf(
        options.parse_args_and_arch(options.get_generation_parser(), input_args=[data, *flags.split()])
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    decoders = {}
    for name, checkpoint in checkpoints.items():
        models, _, task = load_model_ensemble_and_task([checkpoint], arg_overrides={"data": data})
        for model in models:
            model.to(device).prepare_for_inference_(cfg)
        decoders[name] = (models, task, task.build_generator(models, cfg.generation))
    task.load_dataset("test")
    batches = list(
        task.get_batch_iterator(task.dataset("test"), max_sentences=cfg.dataset.batch_size).next_epoch_itr(
            shuffle=False
        )
    )
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


def as_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table, the first column to the left."""
    lines = [columns, ["---", *["--:"] * (len(columns) - 1)], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main() -> None:
    """Measure, print and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", choices=sorted(SYSTEMS))
    parser.add_argument("data", help="directory that data-prep/multi30k/prepare.sh wrote")
    parser.add_argument("--updates", type=int, default=40, help="updates a run, at least 10 (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each system (default: %(default)s)")
    parser.add_argument("--length", type=int, default=15, help="tokens of every hypothesis (default: %(default)s)")
    parser.add_argument(
        "--systems", nargs="+", metavar="SYSTEM", help="only these, by the recipe's names (default: all)"
    )
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks"), help="directory (default: %(default)s)")
    args = parser.parse_args()
    if args.updates < 10 or args.rounds < 1 or args.length < 1:
        parser.error("give at least 10 --updates, 1 of --rounds and a --length of 1")
    unknown = set(args.systems or ()) - set(SYSTEMS[args.suite].values())
    if unknown:
        parser.error(f"--systems {' '.join(sorted(unknown))}: choose among {' '.join(SYSTEMS[args.suite].values())}")
    quiet_host_logging()
    origin = {**provenance(), "num_threads": os.environ.get("OMP_NUM_THREADS", "all cores")}
    systems = {name: s for name, s in SYSTEMS[args.suite].items() if args.systems is None or s in args.systems}
    trainings = {name: recipe(RECIPES[args.suite], args.data, system) for name, system in systems.items()}
    training = measure_trainings(trainings, num_updates=args.updates, num_rounds=args.rounds, flags=[])
    with tempfile.TemporaryDirectory() as work:
        checkpoints = train_briefly(args.suite, systems, args.data, work)
        decoding = measure_decoding(args.data, checkpoints, num_rounds=args.rounds, length=args.length)
        products = {}
        if args.suite == "lstm":
            products = {name: speed_of_products(checkpoint) for name, checkpoint in checkpoints.items()}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    reached = [
        (name, f"{speed:,.0f}", f"{training[name]['words_per_second'] / speed:.2f}") for name, speed in products.items()
    ]
    share = as_table(["model", "matrix products alone, words per second", "share reached"], reached) + "\n"
    reference = decoding[next(iter(systems))]
    decoded = [(name, f"{speed:,.1f}", f"{speed / reference:.2f}") for name, speed in decoding.items()]
    command = f"python scripts/benchmark_translation.py {shlex.join(sys.argv[1:])}"
    tables = (
        f"Training (target tokens):\n\n{as_markdown(training)}\n"
        f"{share if reached else ''}"
        f"Decoding, beam 5, {args.length} tokens a hypothesis:\n\n"
        f"{as_table(['model', 'sentences per second', 'ratio'], decoded)}\n"
        f"Training: medians of {args.rounds} interleaved runs of {args.updates} updates. Decoding: the test set, "
        f"{args.rounds} times, in one process, batch by batch by turns. Threads: {origin['num_threads']}.\n"
        f"`{command}`; {origin['date']}, commit {origin['commit']}; {origin['machine']}.\n"
    )
    args.out.mkdir(parents=True, exist_ok=True)
    suite = "translation" if args.suite == "lstm" else args.suite
    stem = args.out / "_".join([suite, device, *(systems.values() if args.systems else ())])
    stem.with_suffix(".md").write_text(tables, encoding="utf-8")
    results = {"training": training, "words_per_second_of_products": products, "sentences_per_second": decoding}
    content = {**origin, "command": command, **results}
    stem.with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(tables)


if __name__ == "__main__":
    main()
