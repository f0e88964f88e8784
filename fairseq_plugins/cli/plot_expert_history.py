"""How experts of a mixture share words and gradients: ``python -m fairseq_plugins.cli.plot_expert_history --help``."""

import argparse
import sys
from pathlib import Path
from typing import Any, Dict, List

from fairseq.models import FairseqEncoderDecoderModel
from tqdm import tqdm

import fairseq_plugins  # noqa: F401  registers the architectures
from fairseq_plugins.data.corpus import load_token_stream
from fairseq_plugins.evaluation.analyses.layer_learning import LayerLearning, lines_learning, pairs_learning
from fairseq_plugins.evaluation.checkpoints import load_checkpoint, stateful_language_model
from fairseq_plugins.evaluation.split_sentences import split_lines, split_pairs
from fairseq_plugins.flags.command import Command
from fairseq_plugins.flags.common_arguments import (
    add_cpu,
    add_data,
    add_json,
    add_named_models,
    add_plot,
    add_split,
    choose_device,
)
from fairseq_plugins.flags.values import check_at_least_one, named_paths
from fairseq_plugins.models.checkpoint_files import checkpoints_of_updates, naming_checkpoint
from fairseq_plugins.reports.json_text import json_text
from fairseq_plugins.reports.layer_learning import draw_history, history_table
from fairseq_plugins.reports.pictures import save_picture
from fairseq_plugins.reports.provenance import with_origin


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
    named_models = "on"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_data(parser, written_by="data-prep/<corpus>/prepare.sh")
        add_named_models(parser, model="DIR", help="trainings, by the directory of their checkpoints")
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
        runs: Dict[str, Dict[int, LayerLearning]] = {name: {} for name in folders}
        total = sum(map(len, checkpoints.values()))
        with tqdm(total=total, unit="checkpoint", disable=not sys.stderr.isatty()) as progress:
            for name, paths in checkpoints.items():
                for num_updates, path in paths.items():
                    runs[name][num_updates] = _look_at(path, args)
                    progress.update()
        if args.plot:
            save_picture(draw_history(runs), args.plot)
        print(as_json(runs, args) if args.json else history_table(runs))


def _look_at(path: Path, args: argparse.Namespace) -> LayerLearning:
    model, config = load_checkpoint(path, args.data)
    device = choose_device(args)
    with naming_checkpoint(path):
        if isinstance(model, FairseqEncoderDecoderModel):
            sources, targets = (side[: args.num] for side in split_pairs(config.task, args.split))
            return pairs_learning(model.to(device), sources, targets, device=device)
        lm = stateful_language_model(model, path)
        dictionary = lm.decoder.dictionary
        lines = split_lines(load_token_stream(args.data, args.split, dictionary), end=dictionary.eos())[: args.num]
        return lines_learning(lm.to(device), lines, device=device)


def as_json(runs: Dict[str, Dict[int, LayerLearning]], args: argparse.Namespace) -> str:
    """All figures with full precision."""
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
