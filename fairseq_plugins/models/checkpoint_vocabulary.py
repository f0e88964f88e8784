"""Whether a checkpoint fits the data's dictionary."""

from typing import Dict, TypeVar

from fairseq.data import Dictionary
from fairseq.models import BaseFairseqModel
from torch import Tensor, nn

from fairseq_plugins.data.corpus import dictionary_fingerprint
from fairseq_plugins.models.text_task import TextTask
from fairseq_plugins.modules.saved_setting import SavesSettings

Model = TypeVar("Model", bound=BaseFairseqModel)


def check_vocabulary_size(state_dict: Dict[str, Tensor], name: str, embedding: nn.Embedding, *, text: str = "") -> None:
    """Compare the embedding ``name`` of a checkpoint with the model's, which is as large as the dictionary.

    ``text`` says whose words they are, such as "source", where a model reads several texts.

    Raises:
        ValueError: if their numbers of words differ.
    """
    saved = state_dict[name].size(0) if name in state_dict else embedding.num_embeddings
    if saved != embedding.num_embeddings:
        side = f"{text} " if text else ""
        raise ValueError(
            f"the checkpoint was trained with {saved:,} {side}vocabulary items but the data directory's {side}"
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


def keep_vocabularies(model: Model, task: TextTask) -> Model:
    """Give ``model`` the fingerprints of the dictionaries that ``task`` built it with, and return it.

    The decoder holds the target's and the encoder, where there is one, the source's; both are called ``vocabulary``.
    """
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
    return model


def _file(task: TextTask, language_flag: str) -> str:
    language = getattr(getattr(task, "cfg", None), language_flag, None)
    return f"dict.{language}.txt" if language else "dict.txt"
