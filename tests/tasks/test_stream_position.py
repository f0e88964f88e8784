"""A training goes on in its text where a checkpoint stopped."""

import copy

import example_gates
import pytest
import torch
from builders import build_tiny_lm
from fairseq.distributed import utils as distributed_utils
from stateful_training import Training

from fairseq_plugins.modules.recurrent_cell import RECURRENT_CELLS
from fairseq_plugins.modules.recurrent_state import map_state, state_tensors

KEY = "StatefulLanguageModelingTask"
CELLS = {cell: {"rnn_cell": cell} for cell in sorted(RECURRENT_CELLS)}
MODELS = {**CELLS, "gate with state": {"output_gate": "trace"}}
UNSHUFFLED = {"window_lengths": "fixed"}
SHUFFLED = {**UNSHUFFLED, "row_offsets": "random"}

every_model = pytest.mark.parametrize("flags", MODELS.values(), ids=MODELS)


@pytest.fixture(autouse=True)
def gates():
    with example_gates.registered():
        yield


@pytest.fixture
def train():
    """``train(num_windows, flags=, ...)``: a training that has read that many windows, and not trained on them."""

    def train(num_windows=0, *, flags=CELLS["lstm"], **options):
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


def check_going_on(train, flags, convert=lambda saved: saved, **options):
    """Compare a training that goes on from what ``convert`` makes of its saved state with one that never stopped."""
    training = train(flags=flags, **options)
    saved = copy.deepcopy(checkpoint_after(training, 3))
    assert all(part.any(dim=1).all() for part in saved["hidden_state"].values())
    resumed = train(3, flags=flags, **options)
    resumed.model.load_state_dict(copy.deepcopy(training.model.state_dict()))
    resumed.task.set_checkpoint_dict(convert(saved))
    again = resumed.task.get_checkpoint_dict()[KEY]
    assert again["next_window"] == saved["next_window"] and again["hidden_state"].keys() == saved["hidden_state"].keys()
    assert again["row_offsets"] == saved["row_offsets"]
    assert all(torch.equal(again["hidden_state"][name], part) for name, part in saved["hidden_state"].items())
    expected = losses(training, training.windows)
    assert losses(resumed, resumed.windows) == expected and len(expected) > 3


@every_model
def test_going_on_inside_an_epoch_is_going_on_without_a_stop(train, flags):
    check_going_on(train, flags)


@pytest.mark.parametrize("cell", CELLS)
def test_going_on_from_what_older_releases_saved(train, cell):
    """They saved lists of the layers' (h, c), and had no gates."""

    def as_pairs(saved):
        parts = iter(saved["hidden_state"].values())
        return {**saved, "hidden_state": [(part, next(parts)) for part in parts]}

    check_going_on(train, CELLS[cell], convert=as_pairs)


@pytest.mark.parametrize("epoch", [1, 2])
def test_going_on_with_rotated_rows(train, epoch):
    check_going_on(train, CELLS["lstm"], row_offsets="random", epoch=epoch)


def test_offsets_are_saved_inside_an_epoch_and_drawn_anew_for_the_next(train):
    offsets = []
    for epoch in (1, 2):
        training = train(epoch=epoch, **SHUFFLED)
        saved = checkpoint_after(training, 2)
        assert len(saved["row_offsets"]) == 2 and max(saved["row_offsets"]) < saved["next_window"][2]
        offsets.append(saved["row_offsets"])
        for sample in training.windows:
            training.update([sample])
        assert training.task.get_checkpoint_dict()[KEY]["row_offsets"] is None
    assert offsets[0] != offsets[1]
    training = train(**SHUFFLED)
    for _ in training.windows:
        pass
    training.iterator.next_epoch_itr()
    assert training.task.get_checkpoint_dict()[KEY]["row_offsets"] == offsets[1]
    assert checkpoint_after(train(), 2)["row_offsets"] == []


@pytest.mark.parametrize(
    "saved_by, resumed_by",
    [(SHUFFLED, {**SHUFFLED, "seed": 2}), (SHUFFLED, UNSHUFFLED), (UNSHUFFLED, SHUFFLED)],
    ids=["another seed", "switched off", "switched on"],
)
def test_rows_that_begin_elsewhere_are_refused(train, saved_by, resumed_by):
    saved = checkpoint_after(train(**saved_by), 3)
    with pytest.raises(ValueError, match="rows begin elsewhere: use the same --row-offsets and --seed, .*-dataloader"):
        train(3, **resumed_by).task.set_checkpoint_dict(saved)


def test_what_older_releases_saved_is_of_rows_that_begin_where_they_were_cut(train):
    def without_offsets(saved):
        return {name: part for name, part in saved.items() if name != "row_offsets"}

    check_going_on(train, CELLS["lstm"], convert=without_offsets)
    saved = without_offsets(checkpoint_after(train(window_lengths="fixed"), 3))
    with pytest.raises(ValueError, match="rows begin elsewhere"):
        train(3, **SHUFFLED).task.set_checkpoint_dict(saved)


def test_the_state_of_a_gate_is_saved_with_that_of_the_layers_and_decides_how_a_training_goes_on(train):
    flags = MODELS["gate with state"]
    training = train(flags=flags)
    saved = copy.deepcopy(checkpoint_after(training, 3))
    assert list(saved["hidden_state"])[-1] == "gate" and saved["hidden_state"]["gate"].shape == (2, 8)
    saved["hidden_state"]["gate"].zero_()
    resumed = train(3, flags=flags)
    resumed.model.load_state_dict(copy.deepcopy(training.model.state_dict()))
    resumed.task.set_checkpoint_dict(saved)
    assert losses(resumed, [next(resumed.windows)]) != losses(training, [next(training.windows)])


@every_model
def test_where_no_window_of_the_epoch_succeeded_a_training_goes_on_from_zeros(train, flags, monkeypatch):
    """The host passes over windows without enough memory."""

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
    position, decoder = training.task._stream_position, training.model.decoder
    monkeypatch.setattr(type(position), "is_shared", True)
    monkeypatch.setattr(distributed_utils, "all_gather", all_gather)
    left = map_state(lambda x: torch.full_like(x, 0.5, dtype=torch.float16), decoder.initial_state(2))
    decoder.carried_state.set("train", 5, left)
    position.advance(decoder, position=5)
    decoder.carried_state.forget("train")
    position.advance(decoder, position=0)
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
    assert all(torch.equal(x, y) for x, y in zip(saved["hidden_state"].values(), state_tensors(state)))
    for sample in training.windows:
        training.update([sample])
    saved = training.task.get_checkpoint_dict()[KEY]
    assert saved["hidden_state"] is None and saved["next_window"] is None


def test_at_the_start_of_an_epoch_nothing_is_taken_over(train):
    saved = checkpoint_after(train(), 3)
    fresh = train(num_tokens=390)
    fresh.task.set_checkpoint_dict({**saved, "hidden_state": None})
    assert fresh.task.get_checkpoint_dict()[KEY]["next_window"][0] == 0


ANEW = "or train on from these weights, beginning at epoch 1 again, with --reset-dataloader$"


@pytest.mark.parametrize("changed", [{"window_lengths": "fixed"}, {"num_tokens": 390}])
def test_other_windows_are_refused(train, changed):
    saved = checkpoint_after(train(), 3)
    with pytest.raises(ValueError, match=f"cut into other windows: .*, {ANEW}"):
        train(3, **changed).task.set_checkpoint_dict(saved)


def test_another_text_of_as_many_windows_is_refused_inside_an_epoch(train):
    saved = checkpoint_after(train(), 3)
    with pytest.raises(ValueError, match=f"inside an epoch of another text: use the text that it was .*, {ANEW}"):
        train(3, text=1).task.set_checkpoint_dict(saved)
    train(text=1).task.set_checkpoint_dict(saved)  # at the start of an epoch nothing is taken over


def test_the_text_is_that_of_the_rows_of_all_processes_and_kept_inside_an_epoch_alone(train):
    training = train()
    digest = checkpoint_after(training, 1)["text"]
    shards = [train(num_shards=2, shard_id=shard, num_rows=1) for shard in range(2)]
    assert [shard.iterator.dataset.digest for shard in shards] == [digest] * 2
    assert train(text=1).iterator.dataset.digest != digest
    for sample in training.windows:
        training.update([sample])
    assert training.task.get_checkpoint_dict()[KEY]["text"] is None


def test_other_beginnings_of_the_rows_are_refused(train):
    saved = checkpoint_after(train(), 3)
    with pytest.raises(ValueError, match=f"whose rows begin elsewhere: .*, {ANEW}"):
        train(3).task.set_checkpoint_dict({**saved, "row_offsets": [5, 0]})


def test_another_number_of_rows_is_refused(train):
    saved = checkpoint_after(train(), 3)
    with pytest.raises(ValueError, match=f"epoch of 2 rows and cannot go on with 4: .*, {ANEW}"):
        train(3, num_shards=2, num_tokens=800).task.set_checkpoint_dict(saved)


def test_the_state_of_another_model_is_refused(train):
    saved = checkpoint_after(train(), 3)
    other = Training(build_tiny_lm("full", hidden_sizes="8 8"))
    for _ in range(3):
        next(other.windows)
    with pytest.raises(ValueError, match=f"hidden state of another model: .*, {ANEW}"):
        other.task.set_checkpoint_dict(saved)


@every_model
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
        process.task._position.advance(process.model.decoder, position=position)
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
