"""Patches of generation: flags of fairseq-generate and fairseq-interactive do what they say, or are refused."""

import argparse
import math
from dataclasses import fields
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple, Type

import torch
from fairseq import options, scoring, utils
from fairseq.data import Dictionary
from fairseq.data.data_utils import post_process
from fairseq.dataclass import FairseqDataclass
from fairseq.dataclass.configs import CommonEvalConfig, DatasetConfig, GenerationConfig, InteractiveConfig
from fairseq.models import FairseqLanguageModel
from fairseq.ngram_repeat_block import NGramRepeatBlock
from fairseq.registry import REGISTRIES
from fairseq.search import DiverseBeamSearch, LengthConstrainedBeamSearch
from fairseq.sequence_generator import SequenceGenerator
from fairseq.tasks import TASK_REGISTRY, FairseqTask
from fairseq.tokenizer import tokenize_line
from omegaconf import MISSING as MANDATORY
from torch import Tensor

from fairseq_plugins.fairseq_patches.errors import exit_with_fault
from fairseq_plugins.fairseq_patches.patching import wrap
from fairseq_plugins.options import UserError, flag_of

OF_OTHER_MODELS: Dict[str, str] = {
    **dict.fromkeys(
        ("beam_mt", "max_len_a_mt", "max_len_b_mt", "lenpen_mt"), "of models of speech that decode in two passes"
    ),
    "eos_token": "of models of speech",
    **dict.fromkeys(
        (
            *("iter_decode_eos_penalty", "iter_decode_max_iter", "iter_decode_force_max_iter"),
            *("iter_decode_with_beam", "iter_decode_with_external_reranker", "retain_iter_history"),
            *("decoding_format", "print_step"),
        ),
        "of models that refine a translation (--task translation_lev)",
    ),
}
"""Flags that only tasks with their own generator read, and the models they belong to."""

NOT_INTERACTIVE: Dict[str, str] = {
    **dict.fromkeys(("score_reference", "prefix_size"), "there is no reference"),
    **dict.fromkeys(
        ("lm_path", "lm_weight", "num_shards", "shard_id", "quiet", "gen_subset", "results_path"), "it is not read"
    ),
}
"""Flags of fairseq-generate that fairseq-interactive accepts and ignores."""

AT_LEAST: Dict[str, float] = {
    **dict.fromkeys(("max_len_a", "max_len_b", "min_len", "prefix_size", "no_repeat_ngram_size"), 0),
    **dict.fromkeys(("buffer_size", "data_buffer_size", "shard_id"), 0),
    **dict.fromkeys(("max_tokens", "batch_size", "required_seq_len_multiple", "num_shards"), 1),
}
"""Smallest values of flags."""

SEARCHES: Dict[str, str] = {
    "sampling": "--sampling",
    "diverse_beam_groups": "--diverse-beam-groups",
    "diversity_rate": "--diversity-rate",
    "match_source_len": "--match-source-len",
    "constraints": "--constraints",
}
"""Flags that choose a kind of search. fairseq obeys only one of them."""

NEEDS: Sequence[Tuple[str, str]] = (
    ("sampling_topk", "sampling"),
    ("sampling_topp", "sampling"),
    ("diverse_beam_strength", "diverse_beam_groups"),
    ("lm_weight", "lm_path"),
    ("lm_path", "lm_weight"),
    ("retain_dropout_modules", "retain_dropout"),
)
"""Flags that have no effect without another."""

NOT_WITH: Mapping[str, Sequence[str]] = {
    "score_reference": (
        *SEARCHES,
        *("nbest", "min_len", "max_len_a", "max_len_b", "unnormalized", "lenpen", "unkpen", "prefix_size"),
        *("no_repeat_ngram_size", "temperature", "lm_path", "replace_unk"),
    ),
    "match_source_len": ("min_len", "max_len_a", "max_len_b", "prefix_size"),
    "unnormalized": ("lenpen",),
    "sampling_topk": ("sampling_topp",),
}
"""Flags that make others have no effect."""

TEXT_FILES = ("bpe_codes", "sentencepiece_model", "bpe_merges", "bpe_vocab")
"""Flags of ``--bpe`` that name files and have no default."""

_DEFAULTS: Dict[str, Any] = {
    one.name: one.default
    for config in (GenerationConfig, InteractiveConfig, CommonEvalConfig, DatasetConfig)
    for one in fields(config)
}


def patch_generation() -> None:
    """Make the flags of generation do what they say, or refuse them in one line.

    Problem: ``--no-repeat-ngram-size`` compares with the padding at the end of the buffer of tokens, so it forbids
        nothing. ``--num-shards`` and ``--shard-id`` are not read, so every shard decodes everything.
        ``--diverse-beam-groups`` indexes a table with a row for each sentence of the batch by the sentence's number in
        the data set: it ends in an IndexError or uses another sentence. ``--match-source-len`` counts the end mark of
        the source as a word, and longer hypotheses may win. ``--no-seed-provided`` is overwritten. Flags that have no
        effect or exclude each other are ignored, or end in a traceback, sometimes after half of the text.
    Patch: wrap the functions that parse flags, make batches and search.
    Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
    Needed while a ``test_fairseq_alone_...`` of ``tests/fairseq_patches/test_patches_generation.py`` passes.
    """
    wrap(options, "parse_args_and_arch", _parse_and_check)
    wrap(FairseqTask, "build_generator", _check_and_build_generator)
    wrap(FairseqTask, "get_batch_iterator", _make_batches)
    wrap(scoring, "build_scorer", _build_scorer)
    wrap(SequenceGenerator, "_generate", _generate)
    wrap(NGramRepeatBlock, "forward", _block_repeated_ngrams)
    wrap(LengthConstrainedBeamSearch, "set_src_lengths", _set_lengths_without_end)
    wrap(LengthConstrainedBeamSearch, "step", _end_at_length)


class _Values:
    """Values of flags by the names of their fields, with fairseq's defaults."""

    def __init__(self, given: Mapping[str, Any]):
        self._given = given

    def __getitem__(self, name: str) -> Any:
        value = self._given.get(name, _DEFAULTS.get(name))
        return None if value == MANDATORY else value

    @property
    def is_interactive(self) -> bool:
        """Whether they belong to fairseq-interactive."""
        return "buffer_size" in self._given

    def has(self, name: str) -> bool:
        """Whether a flag differs from its default."""
        return self[name] != _DEFAULTS.get(name)

    def shown(self, name: str) -> str:
        """The flag with its value, as on a command line."""
        return flag_of(name) if self[name] is True else f"{flag_of(name)} {self[name]}"


def _faults_of_search(values: _Values) -> Iterator[str]:
    """Faults of the flags of ``GenerationConfig`` that do not depend on the model."""
    for name in _DEFAULTS:
        value = values[name]
        if isinstance(value, float) and not math.isfinite(value):
            yield f"{values.shown(name)}: give a number"
        if name in AT_LEAST and isinstance(value, (int, float)) and value < AT_LEAST[name]:
            yield f"{values.shown(name)}: give at least {AT_LEAST[name]:g}"
    if values["temperature"] <= 0:
        yield f"{values.shown('temperature')}: give a number above 0"
    for name, needed in NEEDS:
        if values.has(name) and not values.has(needed):
            yield f"{values.shown(name)} has no effect without {flag_of(needed)}: give both, or neither"
    chosen = [name for name in SEARCHES if values.has(name)]
    if len(chosen) > 1:
        yield f"{SEARCHES[chosen[0]]} and {SEARCHES[chosen[1]]} are two kinds of search: give one of them"
    for name, others in NOT_WITH.items():
        for other in others:
            if values.has(name) and values.has(other):
                yield f"{values.shown(other)} has no effect with {flag_of(name)}: leave out one of them"
    if values.has("sampling_topk") and values["sampling_topk"] < 1:
        yield f"{values.shown('sampling_topk')}: give at least 1"
    if values.has("sampling_topp") and not 0 < values["sampling_topp"] <= 1:
        yield f"{values.shown('sampling_topp')}: give a number above 0, up to 1"
    if values.has("diverse_beam_groups") and values["diverse_beam_groups"] < 1:
        yield f"{values.shown('diverse_beam_groups')}: give at least 1"
    elif values.has("diverse_beam_groups") and values["beam"] % values["diverse_beam_groups"] != 0:
        yield f"{values.shown('diverse_beam_groups')} must divide {values.shown('beam')}"
    if values.has("diversity_rate") and values["diversity_rate"] < 0:
        yield f"{values.shown('diversity_rate')}: give at least 0"
    if not values["match_source_len"] and values["max_len_a"] <= 0 and values["max_len_b"] < values["min_len"]:
        yield (
            f"{values.shown('max_len_b')} is below {values.shown('min_len')}: no hypothesis could end; give a higher "
            "--max-len-b"
        )


def _check_and_build_generator(
    build_generator: Callable[..., Any],
    task: FairseqTask,
    models: Sequence[Any],
    args: Any,
    seq_gen_cls: Optional[type] = None,
    extra_gen_cls_kwargs: Optional[Dict[str, Any]] = None,
    **others: Any,
) -> Any:
    """Build the generator after checking its flags for these models and this dictionary."""
    names = [one.name for one in fields(GenerationConfig)]
    values = _Values({name: getattr(args, name) for name in names if hasattr(args, name)})
    language_model = (extra_gen_cls_kwargs or {}).get("lm_model")
    for fault in (*_faults_of_search(values), *_faults_of_models(values, models, task, language_model)):
        raise UserError(fault)
    generator = build_generator(task, models, args, seq_gen_cls, extra_gen_cls_kwargs, **others)
    longest = getattr(generator, "max_len", None)
    if longest is not None and not values["match_source_len"] and values["min_len"] > longest - 1:
        raise UserError(f"{values.shown('min_len')}: the models write up to {longest - 1:,} tokens, give fewer")
    return generator


def _faults_of_models(
    values: _Values, models: Sequence[Any], task: FairseqTask, language_model: Optional[Any]
) -> Iterator[str]:
    dictionary: Any = task.target_dictionary
    num_words = len(dictionary)
    if values["sampling_topk"] > num_words:
        yield f"{values.shown('sampling_topk')}: the target's dictionary has {num_words:,} words, give fewer"
    beam = values["beam"]
    if beam >= num_words and values.has("diverse_beam_groups"):
        yield f"{values.shown('beam')}: with groups it must be below {num_words:,}, the words of the dictionary"
    if 2 * beam > num_words and values.has("diversity_rate"):
        yield f"{values.shown('beam')}: with --diversity-rate it may be up to {num_words // 2:,}, half the dictionary"
    if any(isinstance(model, FairseqLanguageModel) for model in models):
        for name in ("print_alignment", "match_source_len", "constraints"):
            if values.has(name):
                yield f"{flag_of(name)}: a language model has no source: leave it out"
    if values.has("print_alignment") and not all(map(_attends, models)):
        yield "--print-alignment needs a model with attention: leave it out, or train with --attention"
    if language_model is not None:
        if not isinstance(language_model, FairseqLanguageModel):
            yield f"{values.shown('lm_path')} is no language model: give one"
        elif getattr(language_model.decoder, "dictionary", dictionary) != dictionary:
            yield f"{values.shown('lm_path')} has another dictionary than the target: train one with that dictionary"


def _attends(model: Any) -> bool:
    """Whether a model returns the attention of its decoder to the source."""
    decoder = getattr(model, "decoder", None)
    stack = getattr(decoder, "stack", None)  # of a recurrent decoder of this package
    layers = getattr(decoder, "layers", [])  # of a Transformer
    has_none = hasattr(stack, "attention") and stack.attention is None
    return not has_none and not any(getattr(layer, "encoder_attn", "not known") is None for layer in layers)


def _parse_and_check(
    parse_args_and_arch: Callable[..., Any],
    parser: argparse.ArgumentParser,
    input_args: Optional[List[str]] = None,
    *args: Any,
    **options_of_parsing: Any,
) -> Any:
    """Parse all flags. fairseq-generate and -interactive end with one line and status 2 if they are wrong."""
    parsed = parse_args_and_arch(parser, input_args, *args, **options_of_parsing)
    namespace = parsed[0] if isinstance(parsed, tuple) else parsed
    if not {"beam_mt", "num_shards", "task"} <= vars(namespace).keys():
        return parsed  # another program
    for fault in _faults_of_command(_Values(vars(namespace))):
        exit_with_fault(parser, fault)
    if parser.parse_known_args(input_args)[0].no_seed_provided:  # fairseq overwrites it
        namespace.no_seed_provided = True
    if namespace.num_shards > 1:  # fairseq-generate reads only the flags of distributed training
        namespace.distributed_world_size, namespace.distributed_rank = namespace.num_shards, namespace.shard_id
    return parsed


def _faults_of_command(values: _Values) -> Iterator[str]:
    """Faults of all flags of fairseq-generate or fairseq-interactive."""
    task = TASK_REGISTRY[values["task"]]
    if task.build_generator is FairseqTask.build_generator:
        yield from _faults_of_search(values)
        for name, owner in OF_OTHER_MODELS.items():
            if values.has(name):
                yield f"{values.shown(name)} is {owner}: leave it out"
    if values.is_interactive:
        for name, reason in NOT_INTERACTIVE.items():
            if values.has(name):
                yield f"{values.shown(name)}: leave it out of fairseq-interactive, {reason}"
        yield from _faults_of_interactive(values)
    else:
        yield from _faults_of_generate(values)
    if values["beam"] < values["nbest"] and not values["score_reference"]:
        yield f"{values.shown('nbest')}: give --beam {values['nbest']} or more"
    if values["sampling"] and values["nbest"] != values["beam"]:
        yield f"--sampling: {values.shown('beam')} draws as many samples: give --nbest {values['beam']}, or --beam 1"
    if values["sacrebleu"]:
        yield "--sacrebleu has no effect: give --scoring sacrebleu"
    if values["retain_dropout_modules"] is not None and values["retain_dropout"]:
        yield "--retain-dropout-modules: models of this package drop in all modules or in none: leave it out"
    yield from _faults_of_replace_unk(values)
    yield from _faults_of_text(values)


def _faults_of_generate(values: _Values) -> Iterator[str]:
    if values["constraints"] is not None:
        yield "--constraints: fairseq-interactive alone reads them, behind tabs; leave it out"
    if not values["shard_id"] < values["num_shards"]:
        yield (
            f"{values.shown('shard_id')}: the numbers of --num-shards {values['num_shards']} are 0 to "
            f"{values['num_shards'] - 1}"
        )
    if values["score_reference"] and values["print_alignment"] == "soft":
        yield "--print-alignment soft has no effect with --score-reference: give --print-alignment hard"
    folder = values["results_path"]
    if folder is not None and values["num_shards"] > 1:
        yield "--results-path: shards would replace each other's file there; redirect the output of each to a file"
    if folder is not None and Path(folder).exists() and not Path(folder).is_dir():
        yield f"--results-path {folder} is a file: give a folder"


def _faults_of_interactive(values: _Values) -> Iterator[str]:
    if values["print_alignment"] == "soft":
        yield "--print-alignment soft: fairseq-interactive cannot print it; give --print-alignment hard"
    if values["batch_size"] is not None and values["batch_size"] > max(values["buffer_size"], 1):
        yield f"{values.shown('batch_size')}: give --buffer-size {values['batch_size']} or more"
    if values["input"] != "-" and (not Path(values["input"]).exists() or Path(values["input"]).is_dir()):
        yield f"{values.shown('input')} is no file: give one, or - for the standard input"


def _faults_of_replace_unk(values: _Values) -> Iterator[str]:
    words = values["replace_unk"]
    if words is None:
        return
    if not values.is_interactive and values["dataset_impl"] != "raw":
        yield "--replace-unk reads the words of the source: give --dataset-impl raw, and data binarised by it"
    if values["print_alignment"] != "hard":
        yield "--replace-unk needs the words that the attention reads most: add --print-alignment hard"
    if words not in ("", VALUE_WITHOUT_A_FILE) and not Path(words).is_file():
        yield f"--replace-unk {words} is no file: give one with a word and its translation a line"


def _faults_of_text(values: _Values) -> Iterator[str]:
    """Faults of flags of text processing."""
    if values["post_process"] is not None:
        try:
            post_process("", values["post_process"])
        except NotImplementedError:
            yield f"--remove-bpe={values['post_process']}: give subword_nmt or sentencepiece, or no value"
    for registry in ("tokenizer", "bpe"):
        name = values[registry]
        if name is None:
            continue
        known: Mapping[str, Any] = REGISTRIES[registry]
        kind: Optional[Type[FairseqDataclass]] = known["dataclass_registry"].get(name)
        if kind is None:
            yield f"--{registry} {name}: fairseq cannot configure it; give another"
            continue
        for one in fields(kind):
            value = values[one.name]
            if value is None and one.default is not None:
                yield f"--{registry} {name} needs {flag_of(one.name)}: give it"
            elif one.name in TEXT_FILES and "://" not in value and not Path(value).is_file():
                yield f"{values.shown(one.name)} is no file: give that of --{registry} {name}"


def _build_scorer(build_scorer: Callable[..., Any], choice: Any, tgt_dict: Any) -> Any:
    try:
        return build_scorer(choice, tgt_dict)
    except ImportError as error:
        raise UserError(f"--scoring {getattr(choice, '_name', choice)}: {error}") from error


def _make_batches(get_batch_iterator: Callable[..., Any], task: FairseqTask, *args: Any, **options: Any) -> Any:
    """Make batches. Refuse a sentence that fits in no batch, and a shard of fairseq-generate without batches."""
    try:
        iterator = get_batch_iterator(task, *args, **options)
    except AssertionError as error:
        if "max_tokens" not in str(error):
            raise
        raise UserError(f"--max-tokens {options.get('max_tokens')}: a sentence has more tokens, give more") from error
    num_shards, shard = options.get("num_shards", 1), options.get("shard_id", 0)
    is_training = torch.distributed.is_available() and torch.distributed.is_initialized()
    if num_shards > 1 and not is_training and shard >= len(iterator.frozen_batches):
        raise UserError(
            f"--num-shards {num_shards} --shard-id {shard}: no batch is left for this shard: give a lower "
            "--num-shards, or a lower --max-tokens, to all shards"
        )
    return iterator


def _generate(
    generate: Callable[..., Any], generator: SequenceGenerator, sample: Dict[str, Any], *args: Any, **options: Any
) -> Any:
    """Search the hypotheses of a batch.

    Raises:
        UserError: if no hypothesis can have the required length, or none has ended.
    """
    source = sample["net_input"].get("src_tokens")
    if source is not None and not generator.match_source_len:
        length = source.size(1)
        longest = min(int(generator.max_len_a * length + generator.max_len_b), generator.max_len - 1)
        if longest < generator.min_len:
            raise UserError(
                f"--min-len {generator.min_len}: of sources of {length} tokens, hypotheses have up to {longest} by "
                "--max-len-a and --max-len-b: give a higher --max-len-b"
            )
    if isinstance(generator.search, DiverseBeamSearch):
        sample = {
            name: part for name, part in sample.items() if name != "id"
        }  # without it fairseq uses positions in the batch
    try:
        return generate(generator, sample, *args, **options)
    except AssertionError as error:  # fairseq's only one in the loop of its search
        raise UserError(
            "no hypothesis of a sentence ends within --max-len-a and --max-len-b as the other flags ask for: allow "
            "longer ones"
        ) from error


def _block_repeated_ngrams(
    forward: Callable[..., Tensor],
    blocker: NGramRepeatBlock,
    tokens: Tensor,
    lprobs: Tensor,
    bsz: int,
    beam_size: int,
    step: int,
) -> Tensor:
    """Set log-probabilities (rows, V) of words that would repeat an n-gram to -inf.

    Rows in which nothing else is possible, as within a given prefix, stay unchanged.

    Args:
        forward: the function of fairseq, which is not called.
        blocker: has n.
        tokens: (rows, max_len + 2) the hypotheses so far, then padding.
        lprobs: (rows, V) log-probabilities of the next word.
        bsz: sentences in the batch.
        beam_size: rows of each sentence.
        step: number of words in ``tokens`` after the first, which begins every hypothesis.
    """
    size = blocker.no_repeat_ngram_size
    written = tokens[:, 1 : step + 1]  # (rows, step)
    if step < size:
        return lprobs
    ngrams = written.unfold(1, size, 1)  # (rows, positions, size)
    latest = written[:, step + 1 - size :]  # (rows, size - 1)
    rows, places = (ngrams[:, :, :-1] == latest.unsqueeze(1)).all(dim=2).nonzero(as_tuple=True)
    allowed = lprobs.clone()
    allowed[rows, ngrams[rows, places, -1]] = -torch.inf
    return torch.where(allowed.isneginf().all(dim=1, keepdim=True), lprobs, allowed)


def _set_lengths_without_end(
    set_src_lengths: Callable[..., None], search: LengthConstrainedBeamSearch, src_lengths: Tensor
) -> None:
    """Set source lengths without the end mark, and at least 1."""
    set_src_lengths(search, (src_lengths - 1).clamp(min=1))


def _end_at_length(
    step_of: Callable[..., Any], search: LengthConstrainedBeamSearch, step: int, lprobs: Tensor, *args: Any, **kw: Any
) -> Any:
    """Let hypotheses that have their length only end. fairseq makes the end certain and keeps the other words."""
    lprobs[step >= search.max_len_a * search.src_lengths + search.max_len_b] = -torch.inf
    return step_of(search, step, lprobs, *args, **kw)


VALUE_WITHOUT_A_FILE = "@@ "
"""fairseq's default for ``--replace-unk`` without a value, which is that of ``--remove-bpe``."""


def patch_replace_unk() -> None:
    """Replace unknown words by source words with ``fairseq-generate --replace-unk --print-alignment hard``.

    Problem: without a value of the flag fairseq reads a file of another flag's default name. It takes the pairs of an
        alignment for numbers. If subwords are joined, it counts words where alignments count subwords.
    Patch: wrap three functions of ``fairseq.utils``. fairseq undoes ``--bpe`` and ``--tokenizer`` in the source before
        it copies words, and ``--remove-bpe`` in fairseq-interactive. A source that then has other positions is refused.
    Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
    Needed while ``test_fairseq_alone_cannot_replace`` passes.
    """
    wrap(utils, "load_align_dict", _load_align_dict)
    wrap(utils, "extract_hard_alignment", _extract_hard_alignment)
    wrap(utils, "post_process_prediction", _post_process_prediction)


class HardAlignment(List[Tuple[int, int]]):
    """Pairs of positions in the source and in the translation.

    Attributes:
        num_source_words: number of words, or subwords, that the model read.
    """

    def __init__(self, pairs: Iterable[Tuple[int, int]], *, num_source_words: int):
        super().__init__(pairs)
        self.num_source_words = num_source_words


def _load_align_dict(
    load_align_dict: Callable[[Optional[str]], Optional[Dict[str, str]]], replace_unk: Optional[str]
) -> Optional[Dict[str, str]]:
    return load_align_dict("" if replace_unk == VALUE_WITHOUT_A_FILE else replace_unk)


def _extract_hard_alignment(
    extract_hard_alignment: Callable[..., List[Tuple[int, int]]],
    attn: Tensor,
    src_sent: Tensor,
    tgt_sent: Tensor,
    pad: int,
    eos: int,
) -> HardAlignment:
    if attn.dim() < 2:
        raise UserError("--print-alignment needs a model with attention: leave it out, or train with --attention")
    pairs = extract_hard_alignment(attn, src_sent, tgt_sent, pad, eos)
    return HardAlignment(pairs, num_source_words=int((src_sent.ne(pad) & src_sent.ne(eos)).sum()))


def _post_process_prediction(
    post_process_prediction: Callable[..., Tuple[Tensor, str, Any]],
    hypo_tokens: Tensor,
    src_str: str,
    alignment: Any,
    align_dict: Optional[Dict[str, str]],
    tgt_dict: Dictionary,
    remove_bpe: Optional[str] = None,
    extra_symbols_to_ignore: Any = None,
) -> Tuple[Tensor, str, Any]:
    """Post-process a translation, and replace words before subwords are joined."""
    if align_dict is None:
        return post_process_prediction(
            hypo_tokens, src_str, alignment, align_dict, tgt_dict, remove_bpe, extra_symbols_to_ignore
        )
    tokens, text, _ = post_process_prediction(
        hypo_tokens, src_str, _source_positions(alignment, src_str), align_dict, tgt_dict, None, extra_symbols_to_ignore
    )
    if remove_bpe is not None:
        text = post_process(text, remove_bpe)
        tokens = tgt_dict.encode_line(text, add_if_not_exist=True)
    return tokens, text, alignment


def _source_positions(alignment: Any, source: str) -> List[int]:
    """The source position of each target word, from the pairs of ``--print-alignment hard``.

    Raises:
        UserError: if there are no pairs, or the source no longer has the words that the model read.
    """
    if not isinstance(alignment, HardAlignment):
        raise UserError("--replace-unk needs the words that the attention reads most: add --print-alignment hard")
    num_words = len(tokenize_line(source))
    if num_words != alignment.num_source_words:
        raise UserError(
            f"--replace-unk copies words that the model reads: it read {alignment.num_source_words} and the source has "
            f"{num_words}, '{source[:30]}'; leave out --bpe and --tokenizer, and join subwords by --remove-bpe of "
            "fairseq-generate"
        )
    return [source for source, _ in sorted(alignment, key=lambda pair: pair[1])]
