"""``fairseq-generate --replace-unk --print-alignment`` puts source words in place of unknown ones.

Mends: without a file the flag's value is the name of one; alignments are pairs, which the host takes for numbers; where
subwords are joined it counts words, and alignments count subwords.
Versions: fairseq 0.12.2, ve-fairseq 0.12.3.
Needed as long as ``test_the_host_alone_cannot_replace`` passes.
"""

from typing import Any, Callable, Dict, List, Optional, Tuple

from fairseq import utils
from fairseq.data import Dictionary
from fairseq.data.data_utils import post_process
from torch import Tensor

from fairseq_plugins.host.wrapping import wrap

VALUE_WITHOUT_A_FILE = "@@ "
"""What the host reads where ``--replace-unk`` has no value; it is that of ``--remove-bpe``."""


def mend() -> None:
    """Wrap the host's functions."""
    wrap(utils, "load_align_dict", _take_no_file_for_none)
    wrap(utils, "post_process_prediction", _replace_by_pairs)


def _take_no_file_for_none(
    load_align_dict: Callable[[Optional[str]], Optional[Dict[str, str]]], replace_unk: Optional[str]
) -> Optional[Dict[str, str]]:
    return load_align_dict("" if replace_unk == VALUE_WITHOUT_A_FILE else replace_unk)


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
        hypo_tokens, src_str, _source_places(alignment), align_dict, tgt_dict, None, extra_symbols_to_ignore
    )
    if remove_bpe is not None:
        text = post_process(text, remove_bpe)
        tokens = tgt_dict.encode_line(text, add_if_not_exist=True)
    return tokens, text, alignment


def _source_places(alignment: Any) -> List[int]:
    """The place in the source of each target word, from the pairs of ``--print-alignment hard``.

    Raises:
        ValueError: if there are no such pairs.
    """
    if isinstance(alignment, Tensor) or any(isinstance(pair[0], str) for pair in alignment):
        raise ValueError("--replace-unk needs the words that the attention reads most: add --print-alignment hard")
    return [source for source, _ in sorted(alignment, key=lambda pair: pair[1])]
