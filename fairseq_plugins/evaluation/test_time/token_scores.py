"""Tokens of a text scored by models that read it as test-time methods say.

Shapes: B rows, T window length.
"""

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Dict, Generator, List, Sequence

from fairseq.models import FairseqLanguageModel
from torch import Tensor

from fairseq_plugins.evaluation.ensemble import NonFiniteLoss
from fairseq_plugins.evaluation.scored_windows import score_windows
from fairseq_plugins.evaluation.test_time.component import Component, ComponentScores
from fairseq_plugins.evaluation.test_time.dropout_samples import DropoutSamples
from fairseq_plugins.evaluation.test_time.dynamic_evaluation import AdaptingWeights, follow_window
from fairseq_plugins.evaluation.test_time.interpolation import interpolate
from fairseq_plugins.evaluation.test_time.methods import EvaluatedText, Passes
from fairseq_plugins.evaluation.test_time.temperature import softmax_temperature
from fairseq_plugins.modules.frozen_parameters import every_parameter_learns


@dataclass(frozen=True)
class TokenScores:
    """What models and components make of a window.

    Attributes:
        target: the tokens that are predicted, (B, T).
        log_probs: of the models, in nats, (B, T) float64.
        components: those of each component.
    """

    target: Tensor
    log_probs: Tensor
    components: List[ComponentScores]

    def mixed(self, weights: Sequence[float]) -> Tensor:
        """Log-probabilities of the mixture in which the components have these weights, (B, T) float64."""
        return interpolate(self.log_probs, self.components, weights)


def score_tokens(
    models: Sequence[FairseqLanguageModel],
    text: EvaluatedText,
    *,
    passes: Passes,
    components: Sequence[Component],
    mean_squares: Sequence[Dict[str, Tensor]] = (),
    window: int,
    device: str,
    show_progress: bool,
) -> Generator[TokenScores, None, None]:
    """Score a text in order. What a window teaches is learned after its scores were handed out.

    The models' weights and settings are as they were when the reader comes to the end, stops or fails; a reader that
    stops closes the generator.

    Args:
        models: language models that carry their state, on ``device``. Several are averaged as probabilities.
        text: what is scored.
        passes: how the models read it.
        components: what else scores it, new ones.
        mean_squares: of each model's gradients; only dynamic evaluation by the rule "rms" reads them.
        window: tokens of a row that a forward pass reads, unless segments of dynamic evaluation take its place.
        device: where the models are.
        show_progress: draw a bar.

    Raises:
        ValueError: if a model or the text does not fit the methods.
        NonFiniteLoss: if an NLL is not finite.
    """
    dynamic = passes.dynamic
    adapts = dynamic is not None and dynamic.changes_weights
    with ExitStack() as stack:
        stack.enter_context(softmax_temperature(models, temperature=passes.temperature))
        samples = None
        if passes.dropout is not None:
            samples = DropoutSamples(models, passes.dropout, device=device)
            stack.callback(samples.forget)
        weights: List[AdaptingWeights] = []
        if dynamic is not None and adapts:
            for number, model in enumerate(models):
                stack.enter_context(every_parameter_learns(model))
                squares = mean_squares[number] if dynamic.rule == "rms" else {}
                weights.append(AdaptingWeights(model, dynamic, mean_squares=squares))
                stack.callback(weights[-1].restore)
        windows = score_windows(
            models,
            text.tokens,
            num_rows=text.num_rows,
            window=window if dynamic is None else dynamic.segment,
            with_gradients=adapts,
            device=device,
            show_progress=show_progress,
        )
        num_steps = 0
        try:
            for scored in windows:
                nll = scored.nll if samples is None else samples.nll(scored)
                yield TokenScores(scored.target, -nll, [component.score(scored) for component in components])
                follow_window(weights, scored)
                num_steps += len(weights)
        except NonFiniteLoss as error:
            if dynamic is not None and num_steps > 0:
                raise NonFiniteLoss(
                    f"--dynamic-rate {dynamic.rate:g}: the weights diverged; give a lower one"
                ) from error
            if passes.temperature < 1:
                raise NonFiniteLoss(
                    f"--temperature {passes.temperature:g}: the logits are not finite; give a higher one, or none, "
                    "which tells whether it is the checkpoint"
                ) from error
            raise
