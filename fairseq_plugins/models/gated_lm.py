"""Language models of Takase, Suzuki & Nagata 2017: trained models under a gate that is trained for them.

Shapes: V vocabulary.
"""

from argparse import ArgumentParser, Namespace
from dataclasses import dataclass, field
from functools import partial
from typing import Optional

from fairseq.dataclass import FairseqDataclass
from fairseq.models import FairseqLanguageModel, register_model, register_model_architecture

from fairseq_plugins.data.text_task import TextTask, check_reads_one_text
from fairseq_plugins.flags.choices import check_choices
from fairseq_plugins.flags.model_flags import ModelFlags
from fairseq_plugins.models.base_model_checkpoints import BaseFlags
from fairseq_plugins.models.base_models import base_models
from fairseq_plugins.models.checkpoint_vocabulary import keep_vocabularies
from fairseq_plugins.models.gated_decoder import GatedDecoder
from fairseq_plugins.models.presets import GATED_LANGUAGE_MODELS, apply_preset
from fairseq_plugins.output_layers.base import check_takes_gate
from fairseq_plugins.output_layers.gate import OUTPUT_GATES, NoGate, build_output_gate
from fairseq_plugins.output_layers.output_precision import OutputPrecisionName


@dataclass
class GatedLanguageModelConfig(FairseqDataclass):
    """Flags of the gated language models; the gates have their own."""

    base_model: str = field(
        default="",
        metadata={
            "help": "checkpoint of the trained language model that is gated; of several, joined by colons, the "
            "probabilities are averaged under one gate"
        },
    )
    output_precision: Optional[OutputPrecisionName] = field(
        default=None,
        metadata={"help": "of the base models' output layers, in training and decoding (default: what each has)"},
    )


FLAGS = ModelFlags(GatedLanguageModelConfig, OUTPUT_GATES)


@register_model("gated_lm")
class GatedLanguageModel(FairseqLanguageModel):
    """Trained recurrent language models, frozen, whose logits are multiplied by a gate that learns.

    Its checkpoint is whole: it holds the base models' weights and the flags that they are built by.
    """

    @staticmethod
    def add_args(parser: ArgumentParser) -> None:
        """Add the model's flags; the architecture supplies the values of those that are not given."""
        FLAGS.add_args(parser)

    @classmethod
    def build_model(cls, args: Namespace, task: TextTask) -> "GatedLanguageModel":
        """Build the model for the task's dictionary; see :func:`~fairseq_plugins.models.base_models.base_models`.

        Raises:
            ValueError: on a value that does not fit, or a base model that cannot be taken, with the remedy.
        """
        check_reads_one_text(task)
        config = check_choices(GatedLanguageModelConfig.from_namespace(args))
        if args.output_gate == NoGate.name:
            raise ValueError(f"--output-gate {NoGate.name}: nothing would learn; take --output-gate iog")
        overrides: BaseFlags = {}
        if config.output_precision is not None:
            overrides = {"output_precision": config.output_precision}
        bases = base_models(args, task, overrides=overrides)
        members = [model.decoder for model in bases.models]
        for member in members:
            check_takes_gate(member.output, gate=args.output_gate)
        ends = [member.layer_widths for member in members]
        widths = ends[0] if len(ends) == 1 else [sum(one[n] for one in ends) for n in (0, -1)]
        gate = build_output_gate(args, dictionary=task.source_dictionary, layer_widths=widths)
        model = cls(GatedDecoder(task.source_dictionary, members=members, gate=gate, weights=bases.weights))
        return keep_vocabularies(model, task, embeddings=[members[0].embedding])


for name, preset in GATED_LANGUAGE_MODELS.items():
    register_model_architecture("gated_lm", name)(partial(apply_preset, preset))
