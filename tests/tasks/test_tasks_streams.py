"""Micro-batches of rows (--row-groups), the position in the training text, and accumulated windows."""

import copy
import weakref
from contextlib import contextmanager

import pytest
import torch
from builders import build_tiny_lm
from fairseq.distributed import utils as distributed_utils
from stateful_training import BASE_LENGTH, LR, Training, make_optimizer

from fairseq_plugins.criterions.regularized_cross_entropy import RegularizedCrossEntropy
from fairseq_plugins.modules.cell import map_state, state_tensors, with_tensors
from fairseq_plugins.tasks import stateful_lm
from fairseq_plugins.tasks.streams import agreed_scale, scaled_learning_rate

pytestmark = pytest.mark.usefixtures("gates_of_the_examples")

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
    """Gradients of updates, what they return, and the state after each; seeded as fairseq does."""
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


@pytest.mark.parametrize("row_groups, cell", [(2, "mmlstm"), (3, "lstm"), (5, "lstm")])
def test_without_dropout_groups_are_one_pass(row_groups, cell):
    expected, found = (run(start(number, rnn_cell=cell), 3) for number in (1, row_groups))
    assert {"ntokens", "nsentences", "loss", "activation", "l1"} <= expected[0][1][2].keys()
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)


def test_one_group_is_fairseqs_step(monkeypatch):
    monkeypatch.delattr(stateful_lm, "train_step_in_micro_batches")
    assert len(run(start(1, **DROPS, dtype=torch.float32), 2)) == 2


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
    with pytest.raises(ValueError, match="--row-groups 6: a process has 5 rows; give at most that many groups"):
        start(6)
    training = start(2)
    training.criterion.logging_outputs_can_be_summed = lambda: False
    with pytest.raises(ValueError, match="--row-groups 2: what RegularizedCrossEntropy logs cannot be summed over gro"):
        training.accumulate(next(training.windows))


LSTM, GATE = {"rnn_cell": "lstm"}, {"output_gate": "trace"}
UNSHUFFLED = {"window_lengths": "fixed"}
SHUFFLED = {**UNSHUFFLED, "row_offsets": "random"}

with_and_without_a_gate = pytest.mark.parametrize("flags", [LSTM, GATE], ids=["lstm", "gate with state"])


@pytest.fixture
def train():
    """``train(num_windows, flags=, ...)``: a training that has read that many windows, and not trained on them."""

    def train(num_windows=0, *, flags=LSTM, **options):
        training = Training(build_tiny_lm("tied", **flags), **options)
        for _ in range(num_windows):
            next(training.windows)
        return training

    return train


def checkpoint_after(training, num_updates):
    for _ in range(num_updates):
        training.update([next(training.windows)])
    return training.task.get_checkpoint_dict()[KEY]


def losses(training, samples):
    found = []
    for sample in samples:
        training.optimizer.zero_grad()
        found.append(training.accumulate(sample)[0].item())
    return found


@pytest.mark.parametrize(
    "flags, options",
    [(LSTM, {}), ({"rnn_cell": "rectifier"}, {}), (GATE, {}), (LSTM, dict(row_offsets="random", epoch=2))],
)
def test_going_on_inside_an_epoch_is_going_on_without_a_stop(train, flags, options):
    training = train(flags=flags, **options)
    saved = copy.deepcopy(checkpoint_after(training, 3))
    assert all(part.any(dim=1).all() for part in saved["hidden_state"].values())
    resumed = train(3, flags=flags, **options)
    resumed.model.load_state_dict(copy.deepcopy(training.model.state_dict()))
    resumed.task.set_checkpoint_dict(saved)
    again = resumed.task.get_checkpoint_dict()[KEY]
    torch.testing.assert_close(again["hidden_state"], saved["hidden_state"], rtol=0, atol=0)
    assert all(again[name] == saved[name] for name in ("next_window", "row_offsets", "text"))
    expected = losses(training, training.windows)
    assert losses(resumed, resumed.windows) == expected and len(expected) > 3


def test_offsets_are_saved_inside_an_epoch_and_drawn_anew_for_the_next(train):
    offsets = []
    for epoch in (1, 2):
        training = train(epoch=epoch, **SHUFFLED)
        saved = checkpoint_after(training, 2)
        assert len(saved["row_offsets"]) == 2 and max(saved["row_offsets"]) < saved["next_window"][2]
        offsets.append(saved["row_offsets"])
    assert offsets[0] != offsets[1]
    training = train(**SHUFFLED)
    for _ in training.windows:
        pass
    training.iterator.next_epoch_itr()
    assert training.task.get_checkpoint_dict()[KEY]["row_offsets"] == offsets[1]
    assert checkpoint_after(train(), 2)["row_offsets"] == []


def test_the_state_of_a_gate_is_saved_with_that_of_the_layers_and_decides_how_a_training_goes_on(train):
    training = train(flags=GATE)
    saved = copy.deepcopy(checkpoint_after(training, 3))
    assert list(saved["hidden_state"])[-1] == "gate" and saved["hidden_state"]["gate"].shape == (2, 8)
    saved["hidden_state"]["gate"].zero_()
    resumed = train(3, flags=GATE)
    resumed.model.load_state_dict(copy.deepcopy(training.model.state_dict()))
    resumed.task.set_checkpoint_dict(saved)
    assert losses(resumed, [next(resumed.windows)]) != losses(training, [next(training.windows)])


@with_and_without_a_gate
def test_where_no_window_of_the_epoch_succeeded_a_training_goes_on_from_zeros(train, flags, monkeypatch):
    """fairseq passes over windows without enough memory."""

    def run_out_of_memory(*args, **kwargs):
        raise RuntimeError("out of memory")

    training = train(flags=flags)
    with monkeypatch.context() as patch:
        patch.setattr(training.model.decoder.output, "forward", run_out_of_memory)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="out of memory"):
                training.accumulate(next(training.windows))
    saved = training.task.get_checkpoint_dict()[KEY]
    assert saved["hidden_state"] is None and saved["next_window"][0] > 0
    resumed = train(2, flags=flags)
    resumed.task.set_checkpoint_dict(saved)
    assert resumed.task.get_checkpoint_dict()[KEY]["next_window"] == saved["next_window"]
    expected = losses(training, training.windows)
    assert losses(resumed, resumed.windows) == expected and len(expected) > 3


def test_processes_share_states_of_one_type(train, monkeypatch):
    """With --amp what a window leaves is of 16 bits, and the state of who had no memory for any is not."""
    shared = []

    def all_gather(packed, group):
        shared.append(packed)
        return [packed]

    training = train()
    position, decoder = training.task._position, training.model.decoder
    monkeypatch.setattr(type(position), "is_shared", True)
    monkeypatch.setattr(distributed_utils, "all_gather", all_gather)
    left = map_state(lambda x: torch.full_like(x, 0.5, dtype=torch.float16), decoder.initial_state(2))
    decoder.carried_state.set("train", 5, left)
    position.advance(position=5)
    decoder.carried_state.forget("train")
    position.advance(position=0)
    assert [(packed.dtype, packed.unique().tolist()) for packed in shared] == [
        (torch.float32, [0.5]),
        (torch.float32, [0.0]),
    ]


def test_the_state_is_saved_by_name_and_only_inside_an_epoch(train):
    training = train()
    assert training.task.get_checkpoint_dict()[KEY]["hidden_state"] is None
    saved = checkpoint_after(training, 1)
    window, state = saved["next_window"], training.model.decoder.carried_state.get("train", saved["next_window"][0])
    assert window[2] == 200 and all(isinstance(name, str) for name in saved["hidden_state"])
    assert [x.shape for x in saved["hidden_state"].values()] == [(2, 12), (2, 12), (2, 8), (2, 8)]
    assert all(torch.equal(x, y) for x, y in zip(saved["hidden_state"].values(), state_tensors(state), strict=True))
    for sample in training.windows:
        training.update([sample])
    saved = training.task.get_checkpoint_dict()[KEY]
    assert saved == dict.fromkeys(("hidden_state", "next_window", "row_offsets", "text"))


def test_at_the_start_of_an_epoch_nothing_is_taken_over(train):
    saved = checkpoint_after(train(), 3)
    fresh = train(num_tokens=390)
    fresh.task.set_checkpoint_dict({**saved, "hidden_state": None})
    assert fresh.task.get_checkpoint_dict()[KEY]["next_window"][0] == 0
    train(text=1).task.set_checkpoint_dict(saved)


ANEW = "or train on from these weights, beginning at epoch 1 again, with --reset-dataloader$"
ELSEWHERE = "rows begin elsewhere: use the same --row-offsets and --seed, "


@pytest.mark.parametrize(
    "saved_by, resumed_by, told",
    [
        ({}, UNSHUFFLED, "cut into other windows: "),
        ({}, {"num_tokens": 390}, "cut into other windows: "),
        ({}, {"text": 1}, "inside an epoch of another text: use the text that it was "),
        ({}, {"num_shards": 2, "num_tokens": 800}, "epoch of 2 rows and cannot go on with 4: "),
        ({}, {"flags": {"hidden_sizes": "8 8"}}, "hidden state of another model: "),
        (SHUFFLED, {**SHUFFLED, "seed": 2}, ELSEWHERE),
        (SHUFFLED, UNSHUFFLED, ELSEWHERE),
        (UNSHUFFLED, SHUFFLED, ELSEWHERE),
    ],
)
def test_what_does_not_go_on_with_a_checkpoint_is_refused(train, saved_by, resumed_by, told):
    saved = checkpoint_after(train(**saved_by), 3)
    with pytest.raises(ValueError, match=f"{told}.*{ANEW}"):
        train(3, **resumed_by).task.set_checkpoint_dict(saved)


def test_the_text_is_that_of_the_rows_of_all_processes(train):
    digest = checkpoint_after(train(), 1)["text"]
    shards = [train(num_shards=2, shard_id=shard, num_rows=1) for shard in range(2)]
    assert [shard.iterator.dataset.digest for shard in shards] == [digest] * 2
    assert train(text=1).iterator.dataset.digest != digest


@with_and_without_a_gate
def test_processes_save_the_state_of_all_rows_and_each_takes_its_own(train, flags, monkeypatch):
    """Two processes, one after the other: what each gathers is given by what both computed."""
    processes = [train(flags=flags, num_shards=2, shard_id=shard, num_tokens=800) for shard in range(2)]
    gathered = []
    monkeypatch.setattr(distributed_utils, "get_data_parallel_group", lambda: None)
    monkeypatch.setattr(distributed_utils, "all_gather", lambda tensor, group: gathered.append(tensor) or [tensor] * 2)
    samples = [[next(process.windows) for _ in range(2)] for process in processes]
    for process, own in zip(processes, samples):
        losses(process, own)
    monkeypatch.setattr(distributed_utils, "all_gather", lambda tensor, group: [gathered[1], gathered[3]])
    positions = [sample[1]["net_input"]["position"] + sample[1]["target"].size(1) for sample in samples]
    saved = []
    for process, position in zip(processes, positions):
        process.task._position.advance(position=position)
        saved.append(process.task.get_checkpoint_dict()[KEY])
    assert saved[0]["next_window"] == saved[1]["next_window"]
    for name, part in saved[0]["hidden_state"].items():
        assert len(part) == 4 and torch.equal(part, saved[1]["hidden_state"][name])
        assert part.is_contiguous()
    for shard, process in enumerate(processes):
        resumed = train(2, flags=flags, num_shards=2, shard_id=shard, num_tokens=800)
        resumed.task.set_checkpoint_dict(saved[0])
        states = [x.model.decoder.carried_state.get("train", positions[shard]) for x in (resumed, process)]
        map_state(lambda x, y: torch.testing.assert_close(x, y, rtol=0, atol=0) or x, *states)


@pytest.fixture
def training(train):
    return train()


def assert_steps(gradients, steps, *, rate):
    for gradient, step in zip(gradients, steps, strict=True):
        torch.testing.assert_close(step, rate * gradient, rtol=1e-4, atol=1e-6)


def test_learning_rate_follows_the_nominal_window_length(training):
    lengths = set()
    for sample in training.windows:
        gradients, steps = training.update([sample])
        lengths.add(sample["nominal_length"])
        assert_steps(gradients, steps, rate=LR * sample["nominal_length"] / BASE_LENGTH)
        assert training.optimizer.get_lr() == LR
    assert len(lengths) > 2, "the windows must differ for the test to mean anything"
    assert sample["nominal_length"] > sample["target"].size(1), "the last window must be cut short"


def test_learning_rate_of_accumulated_windows_is_their_mean(training):
    first, second = next(training.windows), next(training.windows)
    gradients, steps = training.update([first, second])
    assert_steps(gradients, steps, rate=LR * (first["nominal_length"] + second["nominal_length"]) / (2 * BASE_LENGTH))


def test_a_skipped_update_leaves_nothing_behind(training):
    first, second = next(training.windows), next(training.windows)
    training.optimizer.zero_grad()
    training.accumulate(first)
    gradients, steps = training.update([second])
    assert_steps(gradients, steps, rate=LR * second["nominal_length"] / BASE_LENGTH)


def test_without_a_window_the_learning_rate_stays():
    assert agreed_scale([], base_length=10, device=torch.device("cpu")) == 1
    assert agreed_scale([7], base_length=10, device=torch.device("cpu")) == 0.7


@pytest.mark.parametrize("own, others, agreed", [([3], 0.7, 0.7), ([], 0.7, 0.7), ([7], 0.0, 0.7), ([], 0.0, 1)])
def test_processes_agree_on_the_largest_scale(own, others, agreed, monkeypatch):
    monkeypatch.setattr(distributed_utils, "get_data_parallel_world_size", lambda: 2)
    monkeypatch.setattr(distributed_utils, "get_data_parallel_group", lambda: "all")
    reduced = []

    def all_reduce(tensor, group, op):
        assert (group, op, tensor.dtype) == ("all", "max", torch.double)
        reduced.append(tensor.item())
        return tensor.clamp_min(others)

    monkeypatch.setattr(distributed_utils, "all_reduce", all_reduce)
    assert agreed_scale(own, base_length=10, device=torch.device("cpu")) == agreed
    assert reduced == [own[0] / 10 if own else 0.0]


def test_the_schedule_keeps_its_learning_rate_also_after_a_failure():
    optimizer = make_optimizer(torch.nn.Linear(2, 1))
    with pytest.raises(FloatingPointError), scaled_learning_rate(optimizer, 0.5):
        assert optimizer.get_lr() == LR / 2
        raise FloatingPointError
    assert optimizer.get_lr() == LR
