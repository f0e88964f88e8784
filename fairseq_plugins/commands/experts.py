"""Analyses of the experts of mixtures, and of attention."""

import argparse
import re
from collections import defaultdict
from itertools import islice
from pathlib import Path
from typing import Callable, DefaultDict, Dict, Iterator, List, Sequence, Tuple, Union

from fairseq.models import FairseqEncoderDecoderModel, FairseqLanguageModel
from fairseq.tasks import FairseqTask
from torch import Tensor

from fairseq_plugins.command_line import (
    add_beam,
    add_checkpoints,
    add_cpu,
    add_data,
    add_folders,
    add_input,
    add_out,
    add_output_precision,
    add_split,
    add_tokenised,
    choose_device,
)
from fairseq_plugins.commands.report import report_command
from fairseq_plugins.console import Command, progress
from fairseq_plugins.data.pairs import split_pairs
from fairseq_plugins.data.text import load_token_stream, split_lines
from fairseq_plugins.evaluation.analyses.experts import (
    ExpertUse,
    WordExperts,
    expert_layers,
    expert_use,
    word_experts,
)
from fairseq_plugins.evaluation.analyses.layers import LayerLearning, layer_learning
from fairseq_plugins.evaluation.checkpoints import load_with_task
from fairseq_plugins.evaluation.raw_text import load_side_text, number_words, stream_lines
from fairseq_plugins.evaluation.scoring import (
    ScoredBatch,
    ScoredWindow,
    check_rows,
    score_lines,
    score_pairs,
    score_windows,
)
from fairseq_plugins.evaluation.translation import SearchOptions, load_translator
from fairseq_plugins.files import STANDARD_INPUT, name_of
from fairseq_plugins.models.checkpoints import check_checkpoints, checkpoints_of_updates, naming_checkpoint
from fairseq_plugins.options import UserError, count, named_paths, optionally_named_paths
from fairseq_plugins.reports.experts import draw_expert_map, history_report, use_report
from fairseq_plugins.reports.pictures import save_picture
from fairseq_plugins.reports.report import Report
from fairseq_plugins.reports.sentences import save_attention_map


def _add_attention_arguments(parser: argparse.ArgumentParser) -> None:
    add_data(parser)
    add_checkpoints(parser, help="one encoder-decoder, or several as an ensemble")
    add_input(parser, help="sentences, one a line (default: the standard input)")
    parser.add_argument(
        "--num", type=count, default=10, metavar="N", help="draw the first N sentences (default: %(default)s)"
    )
    add_beam(parser)
    add_out(parser, help="directory for the pictures")
    add_output_precision(parser)
    add_cpu(parser)


def _analyze_attention(args: argparse.Namespace) -> None:
    text = stream_lines(args.input or [STANDARD_INPUT])  # missing files are refused here
    translator = load_translator(args.path, args.data, device=choose_device(args), precision=args.output_precision)
    lines = _first_sentences(text, args.num)
    translated = translator.translate_stream(lines, SearchOptions(beam=args.beam), batch_size=1, buffer=1)
    pictures = _picture_files(args.out, len(lines))
    for picture, sentence in zip(pictures, progress(translated, total=len(lines), unit="picture")):
        save_attention_map(sentence, translator.source.subwords, picture)
        print(f"{picture}\t{sentence.text}", flush=True)


def _first_sentences(text: Iterator[str], number: int) -> List[str]:
    """The first lines that are not blank."""
    lines = list(islice((line for line in text if line.strip()), number))
    if not lines:
        raise UserError("there is no sentence to draw, all lines are blank")
    return lines


def _picture_files(folder: Path, number: int) -> List[Path]:
    """Files for the pictures of sentences in a folder, which is made if missing. Those of earlier calls are removed."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("sentence_*.png"):
        if re.fullmatch(r"sentence_\d+", path.stem):
            path.unlink()
    return [folder / f"sentence_{one}.png" for one in range(1, number + 1)]


ATTENTION = Command(
    add_arguments=_add_attention_arguments,
    run=_analyze_attention,
    description="""\
Translates raw sentences as translate does, and draws a picture for each: OUT/sentence_1.png and so on. Prints the name
of the picture and the translation. A picture has a row for each word of the translation and a column for each word of
the source, at most 100 of either. The weights of a word's subwords are summed over the source and averaged over the
target. Weights of several models and of a Transformer's heads are averaged.""",
    example="data-bin/tatoeba.de-en --path checkpoints/tatoeba --input sentences.de --out maps",
)


def _add_experts_arguments(parser: argparse.ArgumentParser) -> None:
    add_data(parser)
    add_checkpoints(parser, help="models with a mixture, each analysed separately; or NAME=CKPT for each")
    add_split(parser, help="split that is counted")
    add_input(
        parser,
        help="sentences to draw, raw; for encoder-decoders sources, which are translated first (default: sentences "
        "of the split)",
    )
    add_tokenised(parser)
    parser.add_argument(
        "--num", type=count, default=3, metavar="N", help="draw the first N sentences (default: %(default)s)"
    )
    parser.add_argument(
        "--rows",
        type=count,
        default=1,
        help="rows a language model's stream is cut into, for speed (default: %(default)s)",
    )
    add_out(parser, help="directory for the pictures")
    add_cpu(parser)


def _analyze_experts(args: argparse.Namespace) -> Report:
    if args.tokenised and not args.input:
        raise UserError("--tokenised says how --input is read: give --input, or leave out --tokenised")
    lines = _first_sentences(stream_lines(args.input), args.num) if args.input else None
    paths = optionally_named_paths(args.path)
    if len(dict(paths)) < len(paths):
        raise UserError("--path: give each NAME or CKPT once")
    check_checkpoints([path for _, path in paths])
    loaded = {name: _load_mixture(path, args) for name, path in paths}
    for name, path in paths:
        if args.tokenised and isinstance(loaded[name][0], FairseqEncoderDecoderModel):
            raise UserError(f"{path}: encoder-decoders read raw sources: leave out --tokenised")
    device = choose_device(args)
    uses: Dict[str, ExpertUse] = {}
    panels: DefaultDict[int, List[Tuple[str, WordExperts]]] = defaultdict(list)  # by number of the sentence
    for name, path in paths:
        model, task = loaded.pop(name)
        model.to(device)
        title = Path(path).resolve().parent.name if name == path else name
        with naming_checkpoint(path):
            sentences = (
                _sentences_of_split(model, task, args) if lines is None else _given_sentences(model, path, args, lines)
            )
            uses[name] = expert_use(model, _score_split(model, task, args))
            for number, sentence in enumerate(zip(*sentences), start=1):
                (scored,) = _score(model, tuple([side] for side in sentence))
                panels[number].append((title, word_experts(model, scored)))
    for picture, of_models in zip(_picture_files(args.out, len(panels)), panels.values()):
        save_picture(draw_expert_map(of_models), picture)
    return use_report(uses, paths=dict(paths), split=args.split)


EXPERTS = report_command(
    _analyze_experts,
    _add_experts_arguments,
    description="""\
For MoS and DOC, in language models and encoder-decoders. Draws a picture for each sentence, OUT/sentence_1.png and so
on, with a panel for each model: the prior of every expert before every word. The tables have, for the whole split,

  share    the mean prior of each expert
  entropy  the mean entropy of each expert's own distribution in nats, from 0 to the logarithm of the vocabulary
  balance  sqrt(beta) in table 4 of Takase et al. 2018, the standard deviation of the experts' total prior divided by
           its mean, for the population and for the sample

Language models read the split as one stream with carried state, encoder-decoders its pairs with the reference as
target.""",
    example="data-bin/ptb --path checkpoints/doc --out maps",
)


Model = Union[FairseqLanguageModel, FairseqEncoderDecoderModel]


def _load_mixture(path: Union[str, Path], args: argparse.Namespace) -> Tuple[Model, FairseqTask]:
    """A model with a mixture, and its task."""
    model, task = load_with_task(path, args.data)
    with naming_checkpoint(path):
        expert_layers(model)
    assert isinstance(model, (FairseqLanguageModel, FairseqEncoderDecoderModel))
    return model, task


Sentences = Tuple[List[Tensor], ...]
"""Lines of a language model, or sources and targets of an encoder-decoder."""


def _sentences_of_split(model: Model, task: FairseqTask, args: argparse.Namespace) -> Sentences:
    """The first sentences of a split."""
    if isinstance(model, FairseqEncoderDecoderModel):
        return tuple(side[: args.num] for side in split_pairs(task, args.split))
    tokens = load_token_stream(args.data, args.split, model.decoder.dictionary)
    return (split_lines(tokens, end=model.decoder.dictionary.eos())[: args.num],)


def _given_sentences(model: Model, path: str, args: argparse.Namespace, lines: Sequence[str]) -> Sentences:
    """The lines of ``--input``; for an encoder-decoder they are raw sources, which it translates."""
    target = model.decoder.dictionary
    if isinstance(model, FairseqEncoderDecoderModel):
        found = load_translator([path], args.data, device=choose_device(args)).translate(lines)
        source = model.encoder.dictionary
        return [number_words(one.source, source) for one in found], [number_words(one.target, target) for one in found]
    text = load_side_text(args.data, kind="tokenised" if args.tokenised else "raw")
    return ([number_words(text.split(line), target) for line in text.watched(lines, name=name_of(*args.input))],)


def _score(model: Model, sentences: Sentences) -> Iterator[ScoredBatch]:
    score: Callable[..., Iterator[ScoredBatch]] = score_pairs if len(sentences) == 2 else score_lines
    return score(model, *sentences)


def _score_split(
    model: Model, task: FairseqTask, args: argparse.Namespace
) -> Iterator[Union[ScoredWindow, ScoredBatch]]:
    """Score a whole split: the pairs of an encoder-decoder, or the stream of a language model."""
    if isinstance(model, FairseqEncoderDecoderModel):
        return score_pairs(model, *split_pairs(task, args.split))
    tokens = load_token_stream(args.data, args.split, model.decoder.dictionary)
    check_rows(tokens, num_rows=args.rows, split=args.split)
    return score_windows([model], tokens, num_rows=args.rows)


def _add_expert_history_arguments(parser: argparse.ArgumentParser) -> None:
    add_data(parser)
    add_folders(parser, metavar="NAME=DIR", help="runs, by the directory of their checkpoints")
    add_split(parser, help="split whose sentences are read", default="valid")
    parser.add_argument(
        "--num", type=count, default=200, metavar="N", help="read the first N sentences (default: %(default)s)"
    )
    add_cpu(parser)


def _analyze_expert_history(args: argparse.Namespace) -> Report:
    folders = dict(named_paths(args.path, repeated_names="refused"))
    checkpoints = {name: checkpoints_of_updates(folder) for name, folder in folders.items()}
    for paths in checkpoints.values():
        _load_mixture(next(iter(paths.values())), args)
    runs: Dict[str, Dict[int, LayerLearning]] = {name: {} for name in folders}
    device, total = choose_device(args), sum(map(len, checkpoints.values()))
    with progress(total=total, unit="checkpoint") as bar:
        for name, paths in checkpoints.items():
            sentences: Sentences = ()
            for num_updates, path in paths.items():
                model, task = _load_mixture(path, args)
                with naming_checkpoint(path):
                    sentences = sentences or _sentences_of_split(model, task, args)
                    runs[name][num_updates] = layer_learning(model, _score(model.to(device), sentences))
                bar.update()
    return history_report(runs, split=args.split)


EXPERT_HISTORY = report_command(
    _analyze_expert_history,
    _add_expert_history_arguments,
    plot="draw them, such as experts.png",
    description="""\
For MoS and DOC, in language models and encoder-decoders that were trained with --save-interval-updates N. For each of
these checkpoints and each layer that experts read, the table has

  share     the mean prior of the layer's experts
  gradient  the mean norm of the gradient that the output layer sends to the layer's output for the loss of a word, in
            nats. The layer learns from it.

Reads the first sentences of the split without dropout. Language models start each from a fresh state.""",
    example="data-bin/ptb --path doc=checkpoints/doc --plot experts.png",
)
