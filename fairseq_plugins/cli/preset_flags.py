"""Training flags of an architecture's preset: ``python -m fairseq_plugins.cli.preset_flags --help``."""

import argparse

from fairseq_plugins.models.presets import command_line
from fairseq_plugins.models.recurrent_lm_presets import ARCHITECTURES


def main() -> None:
    """Print the flags, one a line."""
    parser = argparse.ArgumentParser(
        prog="python -m fairseq_plugins.cli.preset_flags",
        description="Print the fairseq-train flags of a paper's setting, one a line; the architecture itself "
        "supplies the model's hyper-parameters.",
    )
    with_flags = sorted(name for name, preset in ARCHITECTURES.items() if preset.training)
    parser.add_argument("arch", choices=with_flags, metavar="ARCH", help=", ".join(with_flags))
    parser.add_argument(
        "--fine-tune", action="store_true", help="flags for training on from the best model, averaged from the start"
    )
    args = parser.parse_args()
    preset = ARCHITECTURES[args.arch]
    flags = {"arch": args.arch, **preset.training}
    if args.fine_tune:
        if preset.fine_tuning is None:
            parser.error(f"{args.arch} is not fine-tuned in its paper: leave out --fine-tune")
        flags.update(averaging="immediate", **preset.fine_tuning)
    print("\n".join(command_line(flags)))


if __name__ == "__main__":
    main()
