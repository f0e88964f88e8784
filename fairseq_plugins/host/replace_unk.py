"""``fairseq-generate --replace-unk --print-alignment`` puts source words in place of unknown ones.

Mends: without a file the flag's value is the name of one; alignments are pairs, which the host takes for numbers; where
subwords are joined it counts words, and alignments count subwords. The host undoes --bpe and --tokenizer in the source
before it copies words, and --remove-bpe in fairseq-interactive; what then has other places is refused.
Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
Needed as long as ``test_the_host_alone_cannot_replace`` passes.
"""

from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

from fairseq import utils
from fairseq.data import Dictionary
from fairseq.data.data_utils import post_process
from fairseq.tokenizer import tokenize_line
from torch import Tensor

from fairseq_plugins.host.wrapping import wrap

VALUE_WITHOUT_A_FILE = "@@ "
"""What the host reads where ``--replace-unk`` has no value; it is that of ``--remove-bpe``."""


def mend() -> None:
    """Wrap the host's functions."""
    wrap(utils, "load_align_dict", _take_no_file_for_none)
    wrap(utils, "extract_hard_alignment", _count_source_words)
    wrap(utils, "post_process_prediction", _replace_by_pairs)


class HardAlignment(List[Tuple[int, int]]):
    """Pairs of places in the source and in the translation.

    Attributes:
        num_source_words: that the model read, subwords where the text has them.
    """

    def __init__(self, pairs: Iterable[Tuple[int, int]], *, num_source_words: int):
        super().__init__(pairs)
        self.num_source_words = num_source_words


def _take_no_file_for_none(
    load_align_dict: Callable[[Optional[str]], Optional[Dict[str, str]]], replace_unk: Optional[str]
) -> Optional[Dict[str, str]]:
    return load_align_dict("" if replace_unk == VALUE_WITHOUT_A_FILE else replace_unk)


def _count_source_words(
    extract_hard_alignment: Callable[..., List[Tuple[int, int]]],
    attn: Tensor,
    src_sent: Tensor,
    tgt_sent: Tensor,
    pad: int,
    eos: int,
) -> HardAlignment:
    if attn.dim() < 2:
        raise ValueError("--print-alignment needs a model with attention: leave it out, or train with --attention")
    pairs = extract_hard_alignment(attn, src_sent, tgt_sent, pad, eos)
    return HardAlignment(pairs, num_source_words=int((src_sent.ne(pad) & src_sent.ne(eos)).sum()))


def _replace_by_pairs(
    post_process_prediction: Callable[..., Tuple[Tensor, str, Any]],
    hypo_tokens: Tensor,
    src_str: str,
    alignment: Any,
    align_dict: Optional[Dict[str, str]],
    tgt_dict: Dictionary,
    remove_bpe: Optional[str] = None,
    extra_symbols_to_ignore: Any = None,
) -> Tuple[Tensor, str, Any]:
    """The host's answer, with the pairs of the alignment; words are replaced before subwords are joined."""
    if align_dict is None:
        return post_process_prediction(
            hypo_tokens, src_str, alignment, align_dict, tgt_dict, remove_bpe, extra_symbols_to_ignore
        )
    tokens, text, _ = post_process_prediction(
        hypo_tokens, src_str, _source_places(alignment, src_str), align_dict, tgt_dict, None, extra_symbols_to_ignore
    )
    if remove_bpe is not None:
        text = post_process(text, remove_bpe)
        tokens = tgt_dict.encode_line(text, add_if_not_exist=True)
    return tokens, text, alignment


def _source_places(alignment: Any, source: str) -> List[int]:
    """The place in the source of each target word, from the pairs of ``--print-alignment hard``.

    Raises:
        ValueError: if there are no such pairs, or the source is not in the words that the model read.
    """
    if not isinstance(alignment, HardAlignment):
        raise ValueError("--replace-unk needs the words that the attention reads most: add --print-alignment hard")
    num_words = len(tokenize_line(source))
    if num_words != alignment.num_source_words:
        raise ValueError(
            f"--replace-unk copies words that the model reads: it read {alignment.num_source_words} and the source has "
            f"{num_words}, '{source[:30]}'; leave out --bpe and --tokenizer, and join subwords by --remove-bpe of "
            "fairseq-generate"
        )
    return [source for source, _ in sorted(alignment, key=lambda pair: pair[1])]
