"""Speed of the encoder-decoders against fairseq's own: training, and decoding with beam search."""

import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence

import torch
from fairseq import options
from fairseq.checkpoint_utils import load_model_ensemble_and_task
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.tasks import FairseqTask
from fairseq.utils import move_to_cuda
from torch.utils.benchmark import Timer
from tqdm import tqdm

import fairseq_plugins  # noqa: F401  registers the architectures
from fairseq_plugins.benchmarks.suite import Suite
from fairseq_plugins.benchmarks.training_speed import train
from fairseq_plugins.ops.matmul import matmul
from fairseq_plugins.recipes import Recipe, training_arguments
from fairseq_plugins.reports.tables import as_table

SUITES = {"lstm": Suite("multi30k"), "transformer": Suite("multi30k_transformer")}
"""By name. The first system of each is fairseq's own model."""


def train_briefly(
    recipe: Recipe, systems: Sequence[str], *, data: str, folder: Path, flags: Sequence[str] = ()
) -> Dict[str, str]:
    """A checkpoint of each system by its label, two updates old.

    Args:
        recipe: that has the systems.
        systems: their names in the recipe.
        data: directory that data-prep wrote.
        folder: where the checkpoints are left.
        flags: more of ``fairseq-train``.

    Raises:
        ProgramFailed: if a training fails.
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
    """Target words per second, if training were its products alone, in float32, each as fast as a large one.

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
    return _multiply_adds_per_second(device) / (3 * weights_per_word)


def _multiply_adds_per_second(device: str) -> float:
    size = 2048
    a = b = torch.randn(size, size, device=device)
    timer = Timer("matmul(a, b)", globals={"matmul": matmul, "a": a, "b": b}, num_threads=torch.get_num_threads())
    return size**3 / timer.blocked_autorange(min_run_time=2).median


def measure_decoding(
    data: str, checkpoints: Mapping[str, str], *, num_rounds: int, length: int, device: str
) -> Dict[str, float]:
    """Sentences per second of each system; what the models have learned plays no part.

    All translate the test set in this process, batch by batch by turns, so that what else the machine does slows all
    alike; the first round warms up and is not counted. Every hypothesis is made ``length`` tokens long.
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
    """The test set, in its own order."""
    task.load_dataset("test")
    iterator = task.get_batch_iterator(task.dataset("test"), max_sentences=batch_size)
    batches = iterator.next_epoch_itr(shuffle=False)
    assert batches is not None
    return list(batches)


def decoding_as_markdown(sentences_per_second: Mapping[str, float]) -> str:
    """Speed of decoding, and its ratio to the first system's."""
    reference = next(iter(sentences_per_second.values()))
    rows = [(name, f"{speed:,.1f}", f"{speed / reference:.2f}") for name, speed in sentences_per_second.items()]
    return as_table(["model", "sentences per second", "ratio"], rows)
