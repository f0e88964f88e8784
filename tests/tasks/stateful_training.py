"""fairseq's training loop, reduced to what ``--task stateful_lm`` sees of it."""

import torch
from builders import make_dictionary

from fairseq_plugins.criterions.regularized_cross_entropy import RegularizedCrossEntropy
from fairseq_plugins.data.streams import TokenStream
from fairseq_plugins.optim.nt_asgd import NTASGD, NTASGDConfig
from fairseq_plugins.tasks.stateful_lm import StatefulLanguageModelingConfig, StatefulLanguageModelingTask

LR = 0.5
BASE_LENGTH = 20


def make_optimizer(model):
    config = NTASGDConfig(lr=[LR], task="stateful_lm", lr_scheduler="fixed", fp16=False, bf16=False)
    return NTASGD(config, list(model.parameters()))


def random_tokens(num_tokens, *, seed=0):
    return torch.randint(4, 23, (num_tokens,), generator=torch.Generator().manual_seed(seed))


class Training:
    """Rows of a process of ``num_shards``, by default two."""

    def __init__(
        self,
        model,
        *,
        window_lengths="random",
        row_offsets="none",
        row_groups=1,
        num_rows=2,
        num_tokens=400,
        text=0,
        num_shards=1,
        shard_id=0,
        seed=1,
        epoch=1,
    ):
        config = StatefulLanguageModelingConfig(
            data="unused",
            tokens_per_sample=BASE_LENGTH,
            window_lengths=window_lengths,
            row_offsets=row_offsets,
            row_groups=row_groups,
            seed=seed,
            train_subset="train",
            valid_subset="valid",
        )
        self.task = StatefulLanguageModelingTask(config, make_dictionary(23))
        self.model = model
        self.task._decoder = model.decoder
        self.criterion = RegularizedCrossEntropy(self.task)
        self.optimizer = make_optimizer(model)
        self.iterator = self.task.get_batch_iterator(
            TokenStream(random_tokens(num_tokens, seed=text), "train", in_training=True),
            max_sentences=num_rows,
            num_shards=num_shards,
            shard_id=shard_id,
            epoch=epoch,
        )
        self.windows = self.iterator.next_epoch_itr()

    def accumulate(self, sample):
        """Add the gradients of a window; returns loss, sample size and figures to log."""
        return self.task.train_step(sample, self.model, self.criterion, self.optimizer, update_num=0)

    def update(self, samples):
        """Update the parameters; returns their gradients and what was subtracted from them."""
        self.optimizer.zero_grad()
        num_tokens = sum(self.accumulate(sample)[1] for sample in samples)
        self.optimizer.multiply_grads(1 / num_tokens)
        gradients = [parameter.grad.clone() for parameter in self.model.parameters()]
        before = [parameter.detach().clone() for parameter in self.model.parameters()]
        self.task.optimizer_step(self.optimizer, self.model, update_num=0)
        steps = [(old - new) for old, new in zip(before, self.model.parameters())]
        return gradients, steps

    def validate(self, split, *, num_tokens=70, seed=1):
        """Losses of the windows of a split."""
        tokens = TokenStream(random_tokens(num_tokens, seed=seed), split)
        windows = self.task.get_batch_iterator(tokens, max_sentences=2).next_epoch_itr(shuffle=False)
        return [self.task.valid_step(sample, self.model, self.criterion)[0].item() for sample in windows]
