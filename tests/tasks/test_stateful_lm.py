from types import SimpleNamespace

import pytest
import torch
from fairseq.optim.amp_optimizer import AMPOptimizer
from omegaconf import OmegaConf

from fairseq_plugins.criterions.regularized_cross_entropy import RegularizedCrossEntropy
from fairseq_plugins.data.contiguous_streams import TokenStream
from fairseq_plugins.optim.nt_asgd import NTASGD, NTASGDConfig
from fairseq_plugins.tasks.stateful_lm import StatefulLanguageModelingConfig, StatefulLanguageModelingTask

LR = 0.5


def make_optimizer(model, **options):
    config = NTASGDConfig(**options)
    config.lr, config.task, config.lr_scheduler, config.fp16, config.bf16 = [LR], "stateful_lm", "fixed", False, False
    return NTASGD(config, list(model.parameters()))


class Training:
    """The host's training loop, reduced to what the task sees of it."""

    def __init__(self, make_dictionary, model, *, window_lengths="random", num_tokens=400, optimizer=None):
        config = StatefulLanguageModelingConfig(
            data="unused", tokens_per_sample=20, window_lengths=window_lengths, max_window=None
        )
        config.seed, config.train_subset, config.valid_subset = 1, "train", "valid"
        self.task = StatefulLanguageModelingTask(config, make_dictionary(23))
        self.task._model = self.model = model
        self.criterion = RegularizedCrossEntropy(self.task)
        self.optimizer = optimizer or make_optimizer(model)
        tokens = torch.randint(4, 23, (num_tokens,), generator=torch.Generator().manual_seed(0))
        self.iterator = self.task.get_batch_iterator(TokenStream(tokens, "train"), max_sentences=2)
        self.windows = self.iterator.next_epoch_itr()

    def accumulate(self, sample):
        return self.task.train_step(sample, self.model, self.criterion, self.optimizer, update_num=0)

    def update(self, samples):
        self.optimizer.zero_grad()
        num_tokens = sum(self.accumulate(sample)[1] for sample in samples)
        self.optimizer.multiply_grads(1 / num_tokens)
        gradients = [parameter.grad.clone() for parameter in self.model.parameters()]
        before = [parameter.detach().clone() for parameter in self.model.parameters()]
        self.task.optimizer_step(self.optimizer, self.model, update_num=0)
        steps = [(old - new) for old, new in zip(before, self.model.parameters())]
        return gradients, steps


@pytest.fixture
def training(make_dictionary, build_tiny_lm):
    return Training(make_dictionary, build_tiny_lm("tied").train())


def test_learning_rate_follows_the_nominal_window_length(training):
    lengths = set()
    for sample in training.windows:
        gradients, steps = training.update([sample])
        lengths.add(sample["nominal_length"])
        rate = LR * sample["nominal_length"] / 20
        for gradient, step in zip(gradients, steps):
            torch.testing.assert_close(step, rate * gradient, rtol=1e-4, atol=1e-6)
        assert training.optimizer.get_lr() == LR
    assert len(lengths) > 2, "the windows must differ for the test to mean anything"
    assert sample["nominal_length"] > sample["target"].size(1), "the last window must be cut short"


def test_learning_rate_of_accumulated_windows_is_their_mean(training):
    first, second = next(training.windows), next(training.windows)
    gradients, steps = training.update([first, second])
    rate = LR * (first["nominal_length"] + second["nominal_length"]) / 40
    for gradient, step in zip(gradients, steps):
        torch.testing.assert_close(step, rate * gradient, rtol=1e-4, atol=1e-6)


def test_a_skipped_update_leaves_nothing_behind(training):
    first, second = next(training.windows), next(training.windows)
    training.optimizer.zero_grad()
    training.accumulate(first)
    gradients, steps = training.update([second])
    for gradient, step in zip(gradients, steps):
        torch.testing.assert_close(step, LR * second["nominal_length"] / 20 * gradient, rtol=1e-4, atol=1e-6)


def test_accumulated_windows_carry_the_state(training, build_tiny_lm):
    """The gradient of two windows is the gradient of their sum with a detached state between them."""
    first, second = next(training.windows), next(training.windows)
    reference = build_tiny_lm("tied").train()
    gradients, _ = training.update([first, second])
    total = 0
    for sample in (first, second):
        total = total + reference(**sample["net_input"], target=sample["target"])[0].sum()
    (total / (first["ntokens"] + second["ntokens"])).backward()
    for gradient, parameter in zip(gradients, reference.parameters()):
        torch.testing.assert_close(gradient, parameter.grad, rtol=1e-4, atol=1e-6)


def test_a_repeated_window_starts_from_the_same_state(training):
    first, second = next(training.windows), next(training.windows)
    training.optimizer.zero_grad()
    training.accumulate(first)
    losses = []
    for _ in range(3):
        training.optimizer.zero_grad()
        losses.append(training.accumulate(second)[0].item())
    assert losses[0] == losses[1] == losses[2]


def test_a_repeated_update_of_two_windows_starts_from_the_same_state(training):
    samples = [next(training.windows) for _ in range(3)]
    training.optimizer.zero_grad()
    training.accumulate(samples[0])
    losses = []
    for _ in range(2):
        training.optimizer.zero_grad()
        losses.append([training.accumulate(sample)[0].item() for sample in samples[1:]])
    assert losses[0] == losses[1]


def record(training, loss, *, subsets=1):
    training.task.begin_valid_epoch(1, training.model)
    for i in range(subsets):
        meters = {"loss": SimpleNamespace(avg=torch.tensor(loss + i))}
        training.task.post_validate(training.model, {}, meters)
    return training.optimizer.param_groups[0]["validation_losses"]


def test_only_validations_at_the_end_of_an_epoch_reach_the_optimizer(training):
    training.update([next(training.windows)])
    assert record(training, 1.0) == []
    for sample in training.windows:
        training.update([sample])
    assert record(training, 2.0, subsets=2) == [2.0]


def test_validation_after_a_skipped_update_sees_the_average(training):
    training.optimizer._optimizer.start_averaging()
    for _ in range(3):
        training.update([next(training.windows)])
    average = [parameter.detach().clone() for parameter in training.model.parameters()]
    training.optimizer.zero_grad()
    training.accumulate(next(training.windows))
    assert not all(torch.equal(a, b) for a, b in zip(average, training.model.parameters()))
    training.task.begin_valid_epoch(1, training.model)
    assert all(torch.equal(a, b) for a, b in zip(average, training.model.parameters()))


def checkpoint_after(training, num_updates):
    for _ in range(num_updates):
        training.update([next(training.windows)])
    return training.task.get_checkpoint_dict()["StatefulLanguageModelingTask"]


@pytest.mark.parametrize("changed", [{"window_lengths": "fixed"}, {"num_tokens": 390}])
def test_resuming_inside_an_epoch_with_other_windows_is_refused(make_dictionary, build_tiny_lm, training, changed):
    saved = checkpoint_after(training, 3)
    other = Training(make_dictionary, build_tiny_lm("tied"), **changed)
    for _ in range(3):
        next(other.windows)
    with pytest.raises(ValueError, match="cut into other windows: .* --reset-dataloader"):
        other.task.set_checkpoint_dict(saved)


def test_resuming_inside_an_epoch_with_the_same_windows(make_dictionary, build_tiny_lm, training):
    saved = checkpoint_after(training, 3)
    other = Training(make_dictionary, build_tiny_lm("tied"))
    for _ in range(3):
        next(other.windows)
    other.task.set_checkpoint_dict(saved)
    state = other.model.decoder.carried_state.get(training=True)
    assert torch.equal(state[0][0], saved["hidden_state"][0][0])


def test_training_text_as_validation_is_refused():
    config = StatefulLanguageModelingConfig(data="unused")
    config.train_subset, config.valid_subset = "train", "valid,train"
    with pytest.raises(ValueError, match="--valid-subset valid,train holds the training split"):
        StatefulLanguageModelingTask.setup_task(config)


@pytest.mark.parametrize("scale", [1.0, 128.0])
def test_updates_under_amp_do_not_depend_on_the_loss_scale(scale):
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    common = {"fp16_init_scale": scale, "min_loss_scale": 1e-4}
    amp = AMPOptimizer.__new__(AMPOptimizer)
    amp.cfg, amp.fp32_optimizer, amp.min_loss_scale = OmegaConf.create(common), make_optimizer(model), 1e-4
    amp._grad_scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    amp.zero_grad()
    amp.backward(2 * model(torch.ones(1, 1)).sum())
    amp.clip_grad_norm(0.0)
    amp.step()
    assert model.weight.item() == pytest.approx(-LR * 2)


def test_fine_tuning_refuses_the_state_of_a_plain_training(build_tiny_lm):
    plain = make_optimizer(build_tiny_lm("tied")).state_dict()
    with pytest.raises(ValueError, match="--finetune-from-model, or add --reset-optimizer"):
        make_optimizer(build_tiny_lm("tied"), averaging="immediate").load_state_dict(plain)


def test_fine_tuning_refuses_a_scheduler_that_would_not_let_it_end(build_tiny_lm):
    config = NTASGDConfig(averaging="immediate")
    config.lr, config.task, config.lr_scheduler, config.fp16, config.bf16 = [LR], "stateful_lm", "cosine", False, False
    with pytest.raises(ValueError, match="--lr-scheduler cosine: use fixed or reduce_lr_on_plateau"):
        NTASGD(config, list(build_tiny_lm("tied").parameters()))
