"""Patches of generation: the model decides the direction, and flags do what they say."""

import argparse
import os
import re
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Tuple

import torch
from fairseq import checkpoint_utils, options, tasks, utils
from fairseq.data import Dictionary
from fairseq.data.data_utils import post_process
from fairseq.data.iterators import EpochBatchIterator
from fairseq.dataclass.configs import GenerationConfig
from fairseq.dataclass.utils import overwrite_args_by_name
from fairseq.ngram_repeat_block import NGramRepeatBlock
from fairseq.search import DiverseBeamSearch, LengthConstrainedBeamSearch
from fairseq.sequence_generator import SequenceGenerator
from fairseq.tasks import FairseqTask
from fairseq.tasks.translation import TranslationTask
from fairseq.tasks.translation_lev import TranslationLevenshteinTask
from fairseq.tokenizer import tokenize_line
from omegaconf import DictConfig
from torch import Tensor

from fairseq_plugins.data.pairs import GivenLanguages, complete_languages, languages_of
from fairseq_plugins.fairseq_patches import wrap
from fairseq_plugins.options import UserError, flag_of

FLAGS = ("source_lang", "target_lang")
"""The flags of source and target language."""


def patch_translation_direction() -> None:
    """Keep the languages of a translation in its checkpoints, and let them decide the direction of generation.

    Problem: fairseq infers languages without flags from the names of a folder's files, and does not save them. If the
        folder holds several pairs, it takes any. It then lets a model that was trained the other way decode its own
        target language as the source, without a warning. It ignores a single ``--source-lang`` or ``--target-lang``.
    Patch: wrap ``setup_task`` and ``load_checkpoint_to_cpu``. ``patch_checkpoint_fit`` calls
        :func:`check_task_direction` for each model that it builds or resumes.
    Needed while ``test_fairseq_alone_forgets_the_languages`` passes.
    """
    wrap(tasks, "setup_task", _complete_languages_of_task)
    wrap(checkpoint_utils, "load_checkpoint_to_cpu", _keep_languages)


def check_direction(given: GivenLanguages, trained: GivenLanguages, *, name: str) -> None:
    """Refuse languages with source and target exchanged; ``name`` names the checkpoint."""
    source, target = trained
    is_known = source is not None and target is not None and source != target
    if is_known and (given[0] == target or given[1] == source):
        raise UserError(
            f"{name} translates {source} into {target}: give --source-lang {source} --target-lang {target}, or another "
            "checkpoint"
        )


def check_task_direction(task: Any, state: Dict[str, Any], *, name: str) -> None:
    """Refuse a translation task with the other direction than a checkpoint; other tasks have no direction."""
    if isinstance(task, TranslationTask):
        check_direction(languages_of(task.cfg), _languages_of_state(state), name=name)


def _complete_languages_of_task(setup_task: Callable[..., Any], cfg: Any, **options: Any) -> Any:
    """Complete the languages in the flags of a translation task, so that checkpoints save them."""
    if isinstance(cfg, DictConfig) and _is_translation(cfg) and cfg.data and None in languages_of(cfg):
        source, target = languages_of(cfg)
        trained = (None, None) if options.get("from_checkpoint") else _languages_of_path(cfg)
        languages = source or trained[0], target or trained[1]
        cfg.source_lang, cfg.target_lang = complete_languages(languages, utils.split_paths(cfg.data)[0])
    return setup_task(cfg, **options)


def _is_translation(cfg: DictConfig) -> bool:
    return issubclass(tasks.TASK_REGISTRY.get(cfg.get("_name"), object), TranslationTask)


def _languages_of_path(cfg: DictConfig) -> GivenLanguages:
    """Languages of the first model of ``--path``, a flag that is not the task's own."""
    flags: Any = cfg._get_parent()
    path = flags.common_eval.path if flags is not None and "common_eval" in flags else None
    first = utils.split_paths(path)[0] if path else ""
    if not os.path.isfile(first):  # reading the models reports that
        return None, None
    return _languages_of_state(checkpoint_utils.load_checkpoint_to_cpu(first))


def _languages_of_state(state: Dict[str, Any]) -> GivenLanguages:
    if state.get("args") is not None:
        return languages_of(state["args"])
    return languages_of((state.get("cfg") or {}).get("task"))


def _keep_languages(
    load_checkpoint_to_cpu: Callable[..., Dict[str, Any]],
    path: str,
    arg_overrides: Optional[Dict[str, Any]] = None,
    *args: Any,
    **options: Any,
) -> Dict[str, Any]:
    """Read a checkpoint and refuse flags that exchange its languages."""
    given = {name: arg_overrides[name] for name in FLAGS if arg_overrides and arg_overrides.get(name)}
    others = arg_overrides and {name: value for name, value in arg_overrides.items() if name not in FLAGS}
    state = load_checkpoint_to_cpu(path, others, *args, **options)
    trained = _languages_of_state(state)
    wanted = given.get(FLAGS[0], trained[0]), given.get(FLAGS[1], trained[1])
    check_direction(wanted, trained, name=str(path))
    if given and state.get("args") is not None:
        vars(state["args"]).update(given)
    elif given and state.get("cfg") is not None:
        overwrite_args_by_name(state["cfg"], given)
    return state


def patch_generation() -> None:
    """Make the flags of generation do what they say.

    Problem: ``--no-repeat-ngram-size`` compares with the padding at the end of the buffer of tokens, so it forbids
        nothing. ``--num-shards`` and ``--shard-id`` are not read, so every shard decodes everything.
        ``--diverse-beam-groups`` indexes a table with a row for each sentence of the batch by the sentence's number in
        the data set: it ends in an IndexError or uses another sentence. ``--match-source-len`` counts the end mark of
        the source as a word, and longer hypotheses may win. ``--no-seed-provided`` is overwritten. The language
        model of ``--lm-path`` may number its words in another way than the models. A shard without a batch has a
        perplexity of 1 in ``fairseq-eval-lm``.
    Needed while a ``test_fairseq_alone_...`` of ``tests/fairseq_patches/test_patches_generation.py`` passes.
    """
    wrap(options, "parse_args_and_arch", _obey_shards_and_seed)
    wrap(EpochBatchIterator, "next_epoch_itr", _check_shard)
    wrap(FairseqTask, "build_generator", _check_flags_of_generator)
    wrap(SequenceGenerator, "_generate", _generate_by_places)
    wrap(NGramRepeatBlock, "forward", _block_repeated_ngrams)
    wrap(LengthConstrainedBeamSearch, "set_src_lengths", _set_lengths_without_end)
    wrap(LengthConstrainedBeamSearch, "step", _end_at_length)


def _obey_shards_and_seed(
    parse_args_and_arch: Callable[..., Any],
    parser: argparse.ArgumentParser,
    input_args: Optional[List[str]] = None,
    *args: Any,
    **options_of_parsing: Any,
) -> Any:
    """Parse all flags. fairseq-generate splits its data by flags of distributed training, and sets a seed."""
    parsed = parse_args_and_arch(parser, input_args, *args, **options_of_parsing)
    flags = parsed[0] if isinstance(parsed, tuple) else parsed
    if hasattr(flags, "buffer_size") and flags.score_reference:
        parser.error("--score-reference: fairseq-interactive reads no references, fairseq-generate does")
    if not {"num_shards", "beam"} <= vars(flags).keys() or hasattr(flags, "buffer_size"):
        return parsed  # another program, such as fairseq-interactive
    if getattr(flags, "constraints", None):
        parser.error("--constraints: only fairseq-interactive reads them, after tabs in its lines")
    for name in ("print_step", "retain_iter_history"):
        if getattr(flags, name, False) and not issubclass(tasks.TASK_REGISTRY[flags.task], TranslationLevenshteinTask):
            parser.error(f"{flag_of(name)} is for --task translation_lev: leave it out")
    if flags.num_shards > 1:
        if getattr(flags, "results_path", None) is not None:
            parser.error("--results-path: shards would replace each other's file there: redirect them")
        flags.distributed_world_size, flags.distributed_rank = flags.num_shards, flags.shard_id
    if parser.parse_known_args(input_args)[0].no_seed_provided:  # fairseq overwrites it
        flags.no_seed_provided = True
    return parsed


def _check_shard(next_epoch_itr: Callable[..., Any], batches: EpochBatchIterator, *args: Any, **options: Any) -> Any:
    """Make the batches of an epoch. Only a shard of distributed training may be empty, not one that the user chose."""
    num_batches = len(batches.frozen_batches)
    if batches.num_shards > 1 and batches.shard_id >= num_batches and not torch.distributed.is_initialized():
        raise UserError(
            f"--shard-id {batches.shard_id} is empty: the data's batches fill {num_batches} of {batches.num_shards} "
            "shards, give a smaller --num-shards or --batch-size"
        )
    return next_epoch_itr(batches, *args, **options)


def _check_flags_of_generator(
    build_generator: Callable[..., Any],
    task: FairseqTask,
    models: Sequence[Any],
    args: Any,
    seq_gen_cls: Optional[type] = None,
    extra_gen_cls_kwargs: Optional[Dict[str, Any]] = None,
    **others: Any,
) -> Any:
    """Build the generator. The language model of ``--lm-path`` must have the dictionary of the models."""
    language_model = (extra_gen_cls_kwargs or {}).get("lm_model")
    words: Any = task.target_dictionary
    top_k, groups = (getattr(args, name, -1) for name in ("sampling_topk", "diverse_beam_groups"))
    beam = getattr(args, "beam", GenerationConfig.beam)
    if top_k == 0 or top_k > len(words):
        raise UserError(f"--sampling-topk {top_k}: give 1 to {len(words):,}, the number of words")
    if groups > 0 and beam % groups:  # fairseq finds out only while it decodes
        raise UserError(f"--beam {beam}: give a multiple of --diverse-beam-groups {groups}")
    if hasattr(language_model, "encoder"):
        raise UserError(f"--lm-path {args.lm_path} is a translator: give a language model of the target")
    if language_model is not None and getattr(language_model.decoder, "dictionary", words) != words:
        raise UserError(
            f"--lm-path {args.lm_path} has another dictionary than the target: train one with that dictionary"
        )
    return build_generator(task, models, args, seq_gen_cls, extra_gen_cls_kwargs, **others)


def _generate_by_places(
    generate: Callable[..., Any], generator: SequenceGenerator, sample: Dict[str, Any], *args: Any, **options: Any
) -> Any:
    """Search the hypotheses of a batch. Without ids, groups count the sentences of the batch from 0.

    Raises UserError if no hypothesis ends, because probabilities are NaN.
    """
    if isinstance(generator.search, DiverseBeamSearch):
        sample = {name: part for name, part in sample.items() if name != "id"}
    try:
        return generate(generator, sample, *args, **options)
    except (AssertionError, RuntimeError) as error:  # no hypothesis ends, or no word can be drawn
        if not re.search(r"\d < \d|multinomial|probability tensor", str(error)):
            raise
        raise UserError("the model gives no word a probability but NaN: take another checkpoint") from error


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

    Rows in which nothing else is possible, as within a given prefix, stay unchanged. ``tokens`` (rows, max_len + 2) are
    the hypotheses so far, of which ``step`` words follow the first one, then padding.
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
"""fairseq's value of ``--replace-unk`` without an argument, taken from ``--remove-bpe``."""


def patch_replace_unk() -> None:
    """Replace unknown words by source words with ``fairseq-generate --replace-unk --print-alignment hard``.

    Problem: without a value of the flag fairseq reads a file of another flag's default name. It takes the pairs of an
        alignment for numbers. If subwords are joined, it counts words where alignments count subwords.
    Patch: wrap three functions of ``fairseq.utils``. fairseq undoes ``--bpe`` and ``--tokenizer`` in the source before
        it copies words, and ``--remove-bpe`` in fairseq-interactive. A source that then has other positions is refused.
    Needed while ``test_fairseq_alone_cannot_replace`` passes.
    """
    wrap(utils, "load_align_dict", _load_align_dict)
    wrap(utils, "extract_hard_alignment", _extract_hard_alignment)
    wrap(utils, "post_process_prediction", _post_process_prediction)


class HardAlignment(List[Tuple[int, int]]):
    """Pairs of positions in the source and in the translation, and the number of subwords that the model read."""

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

    Raises UserError if there are no pairs, or the source no longer has the words that the model read.
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
