"""Which experts of a mixture served which words: ``python -m fairseq_plugins.cli.plot_experts --help``."""

import argparse
import math
import sys
from itertools import islice
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch
from fairseq.data import Dictionary
from fairseq.models import BaseFairseqModel, FairseqEncoderDecoderModel
from omegaconf import DictConfig
from torch import Tensor

import fairseq_plugins  # noqa: F401  registers the architectures
from fairseq_plugins.command_line import (
    Command,
    add_checkpoints,
    add_cpu,
    add_data,
    add_input,
    add_json,
    add_out,
    add_split,
    add_tokenised,
    choose_device,
)
from fairseq_plugins.data.text import load_token_stream, name_of, read_lines
from fairseq_plugins.evaluation.analyses.experts import (
    ExpertUse,
    WordExperts,
    expert_layers,
    line_experts,
    pair_experts,
    pairs_expert_use,
    stream_expert_use,
)
from fairseq_plugins.evaluation.checkpoints import load_checkpoint, stateful_language_model
from fairseq_plugins.evaluation.raw_text import LineEncoder, encode_lines, load_side_text
from fairseq_plugins.evaluation.scoring import check_rows, prepare_to_score, split_lines, split_pairs
from fairseq_plugins.evaluation.translation import load_translator
from fairseq_plugins.models.checkpoints import check_checkpoints, naming_checkpoint
from fairseq_plugins.options import UserError, check_at_least_one, optionally_named_paths
from fairseq_plugins.reports.plots import draw_expert_map, expert_names
from fairseq_plugins.reports.tables import as_table, json_text, save_picture
from fairseq_plugins.reports.training_log import with_origin


class PlotExperts(Command):
    """Shows which softmaxes of mixtures served which words."""

    name = "plot_experts"
    summary = "Which softmax of a mixture, reading which layer, served each word; and how evenly they serve a split."
    description = """\
For MoS and DOC, in language models and encoder-decoders. A picture a sentence, OUT/sentence_1.png and so on, has a
panel for each model: the prior of every expert before every word. The tables give each expert's share of the split, the
mean entropy of its own distribution in nats, which tells how sure it is, from 0 to the logarithm of the vocabulary, and
the balance, sqrt(beta) in table 4 of Takase et al. 2018: the standard deviation of the experts' prior mass by its
mean, of the population and of the sample. Language models read the split as a stream with carried state, encoder-
decoders its pairs with the reference as the target."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_data(parser, written_by="data-prep/<corpus>/prepare.sh")
        add_checkpoints(parser, help="models with a mixture, each looked at by itself; or NAME=CKPT for each")
        add_split(parser, help="split that is counted")
        add_input(
            parser,
            help="sentences to draw, raw; for encoder-decoders sources, which are translated first (default: those of "
            "the split)",
        )
        add_tokenised(parser)
        parser.add_argument(
            "--num", type=int, default=3, metavar="N", help="sentences to draw, the first (default: %(default)s)"
        )
        parser.add_argument(
            "--rows",
            type=int,
            default=1,
            help="rows a language model's stream is cut into, for speed (default: %(default)s)",
        )
        add_out(parser, help="directory for the pictures")
        add_cpu(parser)
        add_json(parser)

    def run(self, args: argparse.Namespace) -> None:
        check_at_least_one(args.num, flag="--num")
        check_at_least_one(args.rows, flag="--rows")
        if args.tokenised and not args.input:
            raise UserError("--tokenised tells how --input is to be read: give it, or leave out --tokenised")
        lines: Optional[List[str]] = None
        if args.input:
            found = (line for path in args.input for line in read_lines(path, unicode="kept") if line.strip())
            lines = list(islice(found, args.num))
            if not lines:
                raise UserError("there is no sentence to draw, all lines are blank")
        paths = optionally_named_paths(args.path)
        if len(dict(paths)) < len(paths):
            raise UserError("--path: give each NAME or CKPT once")
        check_checkpoints([path for _, path in paths])
        loaded = {name: load_checkpoint(path, args.data) for name, path in paths}
        for name, path in paths:
            with naming_checkpoint(path):
                expert_layers(loaded[name][0])
                if args.tokenised and isinstance(loaded[name][0], FairseqEncoderDecoderModel):
                    raise UserError("encoder-decoders read raw sources: leave out --tokenised")
        device = choose_device(args)
        uses: Dict[str, ExpertUse] = {}
        drawn: List[List[Tuple[str, WordExperts]]] = [[] for _ in range(args.num)]
        for name, path in paths:
            model, config = loaded.pop(name)
            with naming_checkpoint(path):
                look = _look_at_pairs if isinstance(model, FairseqEncoderDecoderModel) else _look_at_stream
                uses[name], sentences = look(model.to(device), config, path, args, lines)
            title = str(Path(*Path(path).parts[-2:])) if name == path else name
            for place, sentence in zip(drawn, sentences):
                place.append((title, sentence))
        args.out.mkdir(parents=True, exist_ok=True)
        for number, panels in enumerate(filter(None, drawn), start=1):
            save_picture(draw_expert_map(panels), args.out / f"sentence_{number}.png")
        print(as_json(uses, dict(paths), args) if args.json else as_text(uses, args.split))


def _look_at_stream(
    model: BaseFairseqModel, _: DictConfig, path: str, args: argparse.Namespace, lines: Optional[List[str]]
) -> Tuple[ExpertUse, List[WordExperts]]:
    """Use of the experts of a language model on the split, and on each of the lines."""
    lm, device = stateful_language_model(model, path), choose_device(args)
    dictionary: Dictionary = lm.decoder.dictionary
    tokens = load_token_stream(args.data, args.split, dictionary)
    check_rows(tokens, num_rows=args.rows, split=args.split)
    if lines is None:
        sequences = split_lines(tokens, end=dictionary.eos())[: args.num]
    else:
        text = load_side_text(args.data, kind="tokenised" if args.tokenised else "raw")
        lines = list(text.watched(lines, name=name_of(*args.input)))
        encoder = LineEncoder(text, dictionary)
        sequences = [torch.tensor(encoder.encode(line).numbers) for line in lines]
    use = stream_expert_use(lm, tokens, num_rows=args.rows, device=device, show_progress=sys.stderr.isatty())
    return use, [line_experts(lm, sequence, device=device) for sequence in sequences]


def _look_at_pairs(
    model: BaseFairseqModel, config: DictConfig, path: str, args: argparse.Namespace, lines: Optional[List[str]]
) -> Tuple[ExpertUse, List[WordExperts]]:
    """Use of the experts of an encoder-decoder on the split, and on each of the lines."""
    assert isinstance(model, FairseqEncoderDecoderModel)
    device = choose_device(args)
    sources, targets = split_pairs(config.task, args.split)
    chosen = list(zip(sources, targets))[: args.num]
    if lines is not None:
        chosen = _translated(lines, model, path, args)
    use = pairs_expert_use(model, sources, targets, device=device, show_progress=sys.stderr.isatty())
    return use, [pair_experts(model, source, target, device=device) for source, target in chosen]


def _translated(
    lines: Sequence[str], model: FairseqEncoderDecoderModel, path: str, args: argparse.Namespace
) -> List[Tuple[Tensor, Tensor]]:
    """Token indices of raw sources and of their translations by the model."""
    sides = model.encoder.dictionary, model.decoder.dictionary
    device = choose_device(args)
    translator = load_translator([path], args.data, device=device)
    prepare_to_score(translator.models, device=device, precision="float32")
    found = translator.translate(list(translator.preparation.watched(lines, name=name_of(*args.input))))
    sources = encode_lines([" ".join(sentence.source) for sentence in found], sides[0])
    targets = encode_lines([" ".join(sentence.target) for sentence in found], sides[1])
    return list(zip(sources, targets))


def as_json(uses: Dict[str, ExpertUse], paths: Dict[str, str], args: argparse.Namespace) -> str:
    """All figures of each model in JSON."""
    figures: List[Dict[str, Any]] = [
        {
            "name": name,
            "path": paths[name],
            "split": args.split,
            "words": use.num_words,
            "layers": use.layers,
            "shares": use.shares,
            "entropies": use.entropies,
            "uniform_entropy": math.log(use.vocab_size),
            "balance": use.balance,
            "sample_balance": use.sample_balance,
        }
        for name, use in uses.items()
    ]
    return json_text(with_origin({"models": figures}, command=args.command_line))


def as_text(uses: Dict[str, ExpertUse], split: str) -> str:
    """A table of the balance of the models, and a table of experts for each model."""
    rows = [
        [name, f"{use.num_words:,}", len(use.layers), f"{use.balance:.3f}", f"{use.sample_balance:.3f}"]
        for name, use in uses.items()
    ]
    columns = ["model", f"words of {split}", "experts", "sqrt(beta), population", "sqrt(beta), sample"]
    tables = [as_table(columns, rows)]
    for name, use in uses.items():
        experts = [
            [expert, f"{share:.2%}", f"{entropy:.2f}"]
            for expert, share, entropy in zip(expert_names(use.layers), use.shares, use.entropies)
        ]
        uniform = f"entropy, of {math.log(use.vocab_size):.2f} nats"
        tables.append(as_table([name, "share of the words", uniform], experts))
    return "\n\n".join(tables)


if __name__ == "__main__":
    PlotExperts().main()
