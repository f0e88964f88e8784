"""Perplexity of trained language models: ``python -m fairseq_plugins.cli.evaluate_lm --help``."""

import argparse
import json
import sys
from dataclasses import asdict

import fairseq_plugins  # noqa: F401  registers the architectures
from fairseq_plugins.data.corpus import load_token_stream
from fairseq_plugins.evaluation.checkpoints import load_language_models
from fairseq_plugins.evaluation.perplexity import Perplexity, evaluate_perplexity
from fairseq_plugins.flags.command import Command
from fairseq_plugins.flags.common_arguments import (
    add_checkpoints,
    add_cpu,
    add_data,
    add_json,
    add_split,
    choose_device,
)
from fairseq_plugins.output_layers.output_precision import OUTPUT_PRECISIONS, OutputPrecision


class EvaluateLanguageModels(Command):
    """Measures perplexity."""

    name = "evaluate_lm"
    summary = "Perplexity of language models on a split, read as one stream with carried state."
    description = (
        "Every token but the first is predicted once, the end mark of each line included. Several checkpoints are\n"
        "averaged as probabilities."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_data(parser)
        add_checkpoints(parser, help="one or more checkpoints")
        add_split(parser)
        parser.add_argument(
            "--rows",
            type=int,
            default=1,
            help="parallel rows the stream is cut into; the first token of each is not scored (default: %(default)s). "
            "With the rows of a training's validation (--batch-size-valid times processes) the result is the loss that "
            "the training logged",
        )
        parser.add_argument(
            "--window",
            type=int,
            default=1000,
            help="tokens a forward pass; not part of the result (default: %(default)s)",
        )
        parser.add_argument(
            "--output-precision",
            choices=OUTPUT_PRECISIONS,
            default="float32",
            help="of the output layer, whatever it was trained in (default: %(default)s)",
        )
        add_cpu(parser)
        add_json(parser)

    def run(self, args: argparse.Namespace) -> None:
        device = choose_device(args)
        models, dictionary = load_language_models(args.path, args.data)
        for module in (module for model in models for module in model.modules()):
            if isinstance(module, OutputPrecision):
                module.score_in(args.output_precision)
        result = evaluate_perplexity(
            [model.to(device) for model in models],
            load_token_stream(args.data, args.split, dictionary),
            unknown=dictionary.unk(),
            num_rows=args.rows,
            window=args.window,
            device=device,
            show_progress=sys.stderr.isatty(),
        )
        print(as_json(result) if args.json else as_text(result))


def as_json(result: Perplexity) -> str:
    """All figures with full precision."""
    figures = {**asdict(result), "perplexity": result.perplexity, "bits_per_token": result.bits_per_token}
    return json.dumps(figures)


def as_text(result: Perplexity) -> str:
    """A figure a line, with its unit."""
    return "\n".join(
        (
            f"tokens predicted    {result.num_tokens:,}",
            f"unknown words       {result.num_unknown:,}",
            f"leftover tokens     {result.num_leftover_tokens:,}",
            f"NLL                 {result.nll:.6f} nats per token",
            f"bits per token      {result.bits_per_token:.6f}",
            f"perplexity          {result.perplexity:.4f}",
        )
    )


if __name__ == "__main__":
    EvaluateLanguageModels().main()
