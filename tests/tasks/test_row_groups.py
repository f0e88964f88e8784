"""The rows of an update in groups, --row-groups."""

import copy
import weakref
from contextlib import contextmanager

import pytest
import torch
from builders import build_tiny_lm
from stateful_training import Training

from fairseq_plugins.criterions.regularized_cross_entropy import RegularizedCrossEntropy
from fairseq_plugins.modules.recurrent_state import state_tensors, with_tensors
from fairseq_plugins.tasks.row_groups import RowGroups
from fairseq_plugins.tasks.stateful_lm import StatefulLanguageModelingConfig, StatefulLanguageModelingTask

KEY = "StatefulLanguageModelingTask"
DROPS = dict(dropout_weight=0.5, dropout_hidden=0.3, dropout_input=0.3, latent_dropout=0.4)


def start(row_groups, *, num_rows=5, dtype=torch.float64, output_layer="doc", balance=0.0, **flags):
    model = build_tiny_lm(output_layer, **flags).to(dtype).train()
    training = Training(model, row_groups=row_groups, num_rows=num_rows, num_tokens=num_rows * 100)
    training.criterion = RegularizedCrossEntropy(
        training.task,
        activation_regularization=2.0,
        temporal_activation_regularization=1.0,
        l1_regularization=1e-4,
        balance=balance,
    )
    return training


def run(training, num_updates):
    """Gradients of updates, what they return, and the state after each; seeded as the host does."""
    results = []
    for number in range(num_updates):
        torch.manual_seed(number)
        sample = next(training.windows)
        training.optimizer.zero_grad()
        step = training.accumulate(sample)
        gradients = [parameter.grad.clone() for parameter in training.model.parameters()]
        training.optimizer.multiply_grads(1 / step[1])
        training.task.optimizer_step(training.optimizer, training.model, update_num=number)
        saved = copy.deepcopy(training.task.get_checkpoint_dict()[KEY])
        results.append((gradients, (step[0].detach(), *step[1:]), saved["hidden_state"], saved["next_window"]))
    return results


@pytest.mark.parametrize("cell", ["lstm", "mmlstm"])
@pytest.mark.parametrize("row_groups", [2, 3, 5])
def test_without_dropout_groups_are_one_pass(row_groups, cell):
    expected, found = (run(start(number, rnn_cell=cell), 3) for number in (1, row_groups))
    assert {"ntokens", "nsentences", "loss", "activation", "l1"} <= expected[0][1][2].keys()
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)


def test_one_group_is_the_step_without_groups_to_the_bit(monkeypatch):
    expected = run(start(1, **DROPS, dtype=torch.float32), 2)
    monkeypatch.setattr(RowGroups, "train_step", lambda self, step, sample, **others: step(sample))
    torch.testing.assert_close(run(start(1, **DROPS, dtype=torch.float32), 2), expected, rtol=0, atol=0)


def test_each_group_draws_masks_of_its_own_and_reads_its_rows_from_their_state():
    """The step of two groups is that of the rows of each, with the masks that are drawn in this order.

    The balance between softmaxes is that of each, weighted by its size.
    """
    grouped = start(2, num_rows=5, balance=0.5, **DROPS)
    run(grouped, 1)
    decoder = grouped.model.decoder
    sample = next(grouped.windows)
    position = sample["net_input"]["position"]
    state = decoder.carried_state.get("train", position)
    weights = copy.deepcopy(grouped.model.state_dict())
    grouped.optimizer.zero_grad()
    torch.manual_seed(7)
    loss, size, logged = grouped.accumulate(sample)
    found = [parameter.grad.clone() for parameter in grouped.model.parameters()]
    after = list(state_tensors(decoder.carried_state.get("train", position + sample["target"].size(1))))

    model = build_tiny_lm("doc", **DROPS).double().train()
    model.load_state_dict(weights)
    torch.manual_seed(7)
    losses, balances, ends = [], [], []
    for rows in (slice(0, 2), slice(2, 5)):
        parts = with_tensors(state, [part[rows] for part in state_tensors(state)])
        model.decoder.carried_state.set("rows", position, parts)
        inputs = {"src_tokens": sample["net_input"]["src_tokens"][rows], "stream": "rows", "position": position}
        target = sample["target"][rows]
        group = {**sample, "net_input": inputs, "target": target, "ntokens": target.numel()}
        part, _, logged_alone = grouped.criterion(model, group)
        losses.append(part)
        balances.append(logged_alone["balance"])
        ends.append(list(state_tensors(model.decoder.carried_state.get("rows", position + group["target"].size(1)))))
    sum(losses).backward()
    assert size == sample["target"].numel() and min(balances) > 0
    torch.testing.assert_close(loss, sum(losses).detach(), rtol=1e-12, atol=0)
    torch.testing.assert_close(logged["balance"], sum(balances), rtol=1e-12, atol=0)
    torch.testing.assert_close(found, [parameter.grad for parameter in model.parameters()], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(after, [torch.cat(pair) for pair in zip(*ends)], rtol=1e-12, atol=1e-12)
    assert not torch.equal(losses[0], losses[1])


@pytest.mark.parametrize("resumed_with", [2, 1])
def test_a_training_goes_on_to_the_bit_and_its_state_fits_any_number_of_groups(resumed_with):
    flags = {"dtype": torch.float32, **(DROPS if resumed_with == 2 else {})}
    stopped = start(2, **flags)
    run(stopped, 2)
    resumed = start(resumed_with, **flags)
    for _ in range(2):
        next(resumed.windows)
    resumed.model.load_state_dict(copy.deepcopy(stopped.model.state_dict()))
    resumed.task.set_checkpoint_dict(copy.deepcopy(stopped.task.get_checkpoint_dict()[KEY]))
    expected = run(stopped, 2)
    exact = {"rtol": 0, "atol": 0} if resumed_with == 2 else {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(run(resumed, 2), expected, **exact)


def test_a_group_without_enough_memory_leaves_the_state_before_the_window(monkeypatch):
    training = start(2, num_rows=4)
    run(training, 1)
    sample = next(training.windows)
    position, decoder = sample["net_input"]["position"], training.model.decoder
    before = decoder.carried_state.get("train", position)
    plain, calls = decoder.output.forward, []

    def run_out_of_memory(*arguments, **options):
        calls.append(arguments)
        if len(calls) == 2:
            raise RuntimeError("out of memory")
        return plain(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(decoder.output, "forward", run_out_of_memory)
        with pytest.raises(RuntimeError, match="out of memory"):
            training.accumulate(sample)
    assert decoder.carried_state._streams.keys() == {"train"}
    assert decoder.carried_state.get("train", position + 1) is before
    run(training, 1)


def test_processes_exchange_gradients_at_the_last_group():
    training, seen = start(3), []

    @contextmanager
    def no_sync():
        seen.append("begin")
        yield
        seen.append("end")

    training.model.no_sync = no_sync
    training.model.register_forward_hook(lambda *_: seen.append("pass"))
    training.accumulate(next(training.windows))
    assert seen == ["begin", "pass", "end", "begin", "pass", "end", "pass"]


def test_what_a_group_computed_is_gone_before_the_next_begins():
    training, alive = start(3), []

    def look(model, inputs):
        assert all(reference() is None for reference in alive)

    training.model.register_forward_pre_hook(look)
    training.model.register_forward_hook(
        lambda model, inputs, output: alive.append(weakref.ref(output[1]["states"].top))
    )
    training.accumulate(next(training.windows))
    assert len(alive) == 3


def test_validation_is_of_all_rows_at_once():
    training, sizes = start(2), []
    training.model.register_forward_hook(lambda model, inputs, output: sizes.append(len(output[1]["states"].tokens)))
    assert training.validate("valid") and set(sizes) == {2}


def test_groups_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="--row-groups 6: a process has 5 rows; give at most so many groups"):
        start(6)
    config = StatefulLanguageModelingConfig(data="unused", row_groups=0)
    config.train_subset, config.valid_subset = "train", "valid"
    with pytest.raises(ValueError, match="--row-groups 0: give at least 1"):
        StatefulLanguageModelingTask.setup_task(config)
    training = start(2)
    training.criterion.logging_outputs_can_be_summed = lambda: False
    with pytest.raises(ValueError, match="--row-groups 2: what RegularizedCrossEntropy logs cannot be summed over gro"):
        training.accumulate(next(training.windows))
