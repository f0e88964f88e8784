"""Perplexity of trained language models: ``python -m fairseq_plugins.cli.evaluate_lm --help``."""

import argparse
import json
import sys
from dataclasses import asdict

import fairseq_plugins  # noqa: F401  registers the architectures
from fairseq_plugins.cli import add_common_options, choose_device, one_line_errors, quiet_host_logging
from fairseq_plugins.data.corpus import load_token_stream
from fairseq_plugins.evaluation.checkpoints import load_language_models
from fairseq_plugins.evaluation.perplexity import Perplexity, evaluate_perplexity


def get_parser() -> argparse.ArgumentParser:
    """The command's flags."""
    parser = argparse.ArgumentParser(
        prog="python -m fairseq_plugins.cli.evaluate_lm",
        description="Perplexity of a split, read as one stream with carried state: every token but the first is "
        "predicted once, the end mark of each line included. Several checkpoints are averaged as probabilities.",
    )
    parser.add_argument("data", help="directory that fairseq-preprocess --only-source wrote")
    parser.add_argument("--path", nargs="+", required=True, metavar="CKPT", help="one or more checkpoints")
    parser.add_argument("--split", default="test", help="split to score (default: %(default)s)")
    parser.add_argument(
        "--rows",
        type=int,
        default=1,
        help="parallel rows the stream is cut into; the first token of each is not scored (default: %(default)s). "
        "With the rows of a training's validation (--batch-size-valid times processes) the result is the loss that the "
        "training logged",
    )
    parser.add_argument(
        "--window", type=int, default=1000, help="tokens a forward pass; not part of the result (default: %(default)s)"
    )
    add_common_options(parser)
    return parser


def main() -> None:
    """Run the command; a user's mistake ends with one line and exit status 2."""
    quiet_host_logging()
    parser = get_parser()
    args = parser.parse_args()
    device = choose_device(args)
    with one_line_errors(parser):
        models, dictionary = load_language_models(args.path, args.data)
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
    main()
