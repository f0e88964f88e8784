"""Whether a checkpoint fits the data's dictionary."""

from functools import partial
from typing import Any, Dict, Sequence, TypeVar

from fairseq.data import Dictionary
from fairseq.models import BaseFairseqModel
from torch import Tensor, nn

from fairseq_plugins.data.corpus import dictionary_fingerprint
from fairseq_plugins.data.text_task import TextTask, task_config
from fairseq_plugins.models.shared_weights import refuse_unequal_copies
from fairseq_plugins.modules.saved_setting import SavesSettings

Model = TypeVar("Model", bound=BaseFairseqModel)


def refuse_other_size(embedding: nn.Embedding, *, text: str) -> None:
    """Let an embedding, which is as large as its dictionary, refuse the weights of a checkpoint with another size.

    They are refused with a ValueError. ``text`` says whose words they are, such as "source ", or is empty.
    """
    embedding.register_load_state_dict_pre_hook(partial(_compare_size, text=text))


def _compare_size(
    embedding: nn.Embedding, state_dict: Dict[str, Tensor], prefix: str, *loading: Any, text: str
) -> None:
    saved = state_dict.get(f"{prefix}weight")
    if saved is not None and len(saved) != embedding.num_embeddings:
        raise ValueError(
            f"the checkpoint was trained with {len(saved):,} {text}vocabulary items but the data directory's {text}"
            f"dictionary gives {embedding.num_embeddings:,}: point to the data that the checkpoint was trained on"
        )


class VocabularyFingerprint(SavesSettings):
    """Keeps the digest of a dictionary in checkpoints and refuses those that were trained with another one.

    Args:
        dictionary: the host's dictionary.
        name: what the error calls it, such as "the source dictionary".
        file: its file in the data directory, such as "dict.de.txt".
        flag: the flag of fairseq-preprocess that takes such a file.

    Checkpoints of earlier versions hold no digest and are loaded.
    """

    def __init__(self, dictionary: Dictionary, *, name: str, file: str, flag: str):
        super().__init__()
        self.name, self.file, self.flag = name, file, flag
        self.save_text("digest", dictionary_fingerprint(dictionary), explain=self._explain)

    def _explain(self, saved_digest: str) -> str:
        return (
            f"{self.name}, {self.file}, is not the one that the checkpoint was trained with: point to the data of the "
            f"training, or binarise the text with fairseq-preprocess {self.flag} and its {self.file}"
        )


def keep_vocabularies(model: Model, task: TextTask, *, embeddings: Sequence[nn.Embedding]) -> Model:
    """Let ``model`` refuse checkpoints of other dictionaries than those that ``task`` built it with, and return it.

    Those with several embeddings where it shares one are refused, too.

    The decoder holds the fingerprint of the target's and the encoder, where there is one, the source's; both are called
    ``vocabulary``. ``embeddings`` are those of the encoder's words, where there is one, and of the decoder's.
    """
    texts = ("source ", "target ") if hasattr(model, "encoder") else ("",)
    for embedding, text in zip(embeddings, texts, strict=True):
        refuse_other_size(embedding, text=text)
    if hasattr(model, "encoder"):
        source = VocabularyFingerprint(
            task.source_dictionary, name="the source dictionary", file=_file(task, "source_lang"), flag="--srcdict"
        )
        target = VocabularyFingerprint(
            task.target_dictionary, name="the target dictionary", file=_file(task, "target_lang"), flag="--tgtdict"
        )
        model.get_submodule("encoder").add_module("vocabulary", source)
    else:
        target = VocabularyFingerprint(task.source_dictionary, name="the vocabulary", file="dict.txt", flag="--srcdict")
    model.get_submodule("decoder").add_module("vocabulary", target)
    refuse_unequal_copies(model)
    return model


def _file(task: TextTask, language_flag: str) -> str:
    language = getattr(task_config(task), language_flag, None)
    return f"dict.{language}.txt" if language else "dict.txt"
