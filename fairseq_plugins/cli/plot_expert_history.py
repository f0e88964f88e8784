"""How experts of a mixture share words and gradients: ``python -m fairseq_plugins.cli.plot_expert_history --help``."""

import argparse
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

from fairseq.data import Dictionary
from fairseq.models import BaseFairseqModel, FairseqEncoderDecoderModel
from omegaconf import DictConfig
from torch import Tensor
from tqdm import tqdm

import fairseq_plugins  # noqa: F401  registers the architectures
from fairseq_plugins.command_line import (
    Command,
    add_cpu,
    add_data,
    add_json,
    add_named_folders,
    add_plot,
    add_split,
    choose_device,
)
from fairseq_plugins.data.text import load_token_stream
from fairseq_plugins.evaluation.analyses.experts import expert_layers
from fairseq_plugins.evaluation.analyses.layers import LayerLearning, lines_learning, pairs_learning
from fairseq_plugins.evaluation.checkpoints import load_checkpoint, stateful_language_model
from fairseq_plugins.evaluation.scoring import split_lines, split_pairs
from fairseq_plugins.models.checkpoints import checkpoints_of_updates, naming_checkpoint
from fairseq_plugins.options import check_at_least_one, named_paths
from fairseq_plugins.reports.plots import draw_history, history_table
from fairseq_plugins.reports.tables import json_text, save_picture
from fairseq_plugins.reports.training_log import with_origin

Sentences = Tuple[List[Tensor], ...]
"""Lines of a language model, or sources and targets of an encoder-decoder."""


class PlotExpertHistory(Command):
    """Shows how the layers of a mixture learn."""

    name = "plot_expert_history"
    summary = "How the experts of a mixture share the words, and the gradient, as a training goes on."
    description = """\
For MoS and DOC, in language models and encoder-decoders that were trained with --save-interval-updates N. At every
checkpoint of updates, by the layers that experts read: their share of the words, which is their mean prior; and the
mean norm of the gradient of a word's loss by the layer's output, in nats, as the output layer gives it, which is what
the layer learns by. Sentences are the first of the split, without dropout, those of language models each from a fresh
state."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_data(parser, written_by="data-prep/<corpus>/prepare.sh")
        add_named_folders(parser, metavar="NAME=DIR", help="trainings, by the directory of their checkpoints")
        add_split(parser, help="split whose sentences are read", default="valid")
        parser.add_argument(
            "--num", type=int, default=200, metavar="N", help="sentences that are read (default: %(default)s)"
        )
        add_plot(parser, help="draw them, such as experts.png")
        add_cpu(parser)
        add_json(parser)

    def run(self, args: argparse.Namespace) -> None:
        check_at_least_one(args.num, flag="--num")
        folders = dict(named_paths(args.path, repeated_names="refused"))
        checkpoints = {name: checkpoints_of_updates(folder) for name, folder in folders.items()}
        for paths in checkpoints.values():
            first = next(iter(paths.values()))
            with naming_checkpoint(first):
                expert_layers(load_checkpoint(first, args.data)[0])
        runs: Dict[str, Dict[int, LayerLearning]] = {name: {} for name in folders}
        device, total = choose_device(args), sum(map(len, checkpoints.values()))
        with tqdm(total=total, unit="checkpoint", disable=not sys.stderr.isatty()) as progress:
            for name, paths in checkpoints.items():
                sentences: Sentences = ()
                for num_updates, path in paths.items():
                    model, config = load_checkpoint(path, args.data)
                    with naming_checkpoint(path):
                        sentences = sentences or _read_sentences(model, config, path, args)
                        look: Callable[..., LayerLearning] = pairs_learning if len(sentences) == 2 else lines_learning
                        runs[name][num_updates] = look(model.to(device), *sentences, device=device)
                    progress.update()
        if args.plot:
            save_picture(draw_history(runs), args.plot)
        print(as_json(runs, args) if args.json else history_table(runs))


def _read_sentences(model: BaseFairseqModel, config: DictConfig, path: Path, args: argparse.Namespace) -> Sentences:
    """The first lines of a split, or the first sources and targets for an encoder-decoder."""
    if isinstance(model, FairseqEncoderDecoderModel):
        return tuple(side[: args.num] for side in split_pairs(config.task, args.split))
    dictionary: Dictionary = stateful_language_model(model, path).decoder.dictionary
    tokens = load_token_stream(args.data, args.split, dictionary)
    return (split_lines(tokens, end=dictionary.eos())[: args.num],)


def as_json(runs: Dict[str, Dict[int, LayerLearning]], args: argparse.Namespace) -> str:
    """All figures in JSON."""
    figures: List[Dict[str, Any]] = [
        {
            "name": name,
            "split": args.split,
            "checkpoints": [
                {"updates": at, "words": one.num_words, "shares": one.shares, "gradients": one.gradients}
                for at, one in history.items()
            ],
        }
        for name, history in runs.items()
    ]
    return json_text(with_origin({"runs": figures}, command=args.command_line))


if __name__ == "__main__":
    PlotExpertHistory().main()
