"""What the host's programs ask of a task whose texts are streams."""

from typing import Any, Dict, Iterable, NoReturn, Optional

from fairseq.sequence_scorer import SequenceScorer
from fairseq.tasks.language_modeling import LanguageModelingTask

from fairseq_plugins.data.contiguous_streams import TokenStream

_READS_NO_SENTENCES = (
    "--task stateful_lm reads a text as one stream, not sentences to go on from: give --task language_modeling, or "
    "take python -m fairseq_plugins.cli.generate_text, from Python fairseq_plugins.load"
)


class StreamReadingTask(LanguageModelingTask):
    """Scores windows of streams for the host's programs, and refuses sentences."""

    # pyrefly: ignore[bad-override]
    def eval_lm_dataloader(
        self,
        dataset: TokenStream,
        batch_size: Optional[int] = None,
        num_shards: int = 1,
        context_window: int = 0,
        **kwargs: Any,
    ) -> Iterable[Dict[str, Any]]:
        """Windows for ``fairseq-eval-lm``, by default of one row.

        Raises:
            ValueError: on shards or a context of their own, for state is carried through all windows.
        """
        if num_shards > 1:
            raise ValueError(
                f"--task stateful_lm reads a text as one stream, not in {num_shards} shards: leave out --num-shards, "
                "or give --distributed-world-size 1"
            )
        if context_window > 0:
            raise ValueError(
                f"--context-window {context_window}: --task stateful_lm carries its state from window to window, which "
                "is all the context: leave it out"
            )
        windows = self.get_batch_iterator(dataset, max_sentences=batch_size or 1).next_epoch_itr(shuffle=False)
        assert windows is not None
        return windows

    def build_dataset_for_inference(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse sentences, such as those of ``fairseq-interactive``.

        Raises:
            ValueError: with what reads them.
        """
        raise ValueError(_READS_NO_SENTENCES)

    def inference_step(self, generator: Any, models: Any, sample: Dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """The host's step; windows of a stream are scored, as by ``fairseq-generate --score-reference``, not continued.

        Raises:
            ValueError: if they are to be continued.
        """
        if "stream" in sample["net_input"] and not isinstance(generator, SequenceScorer):
            raise ValueError(_READS_NO_SENTENCES)
        return super().inference_step(generator, models, sample, *args, **kwargs)
