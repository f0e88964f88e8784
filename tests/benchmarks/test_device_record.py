"""Steps of the report on a device resume, and record the errors of failed items."""

import json
from dataclasses import replace

import pytest

from fairseq_plugins.benchmarks.device import record
from fairseq_plugins.benchmarks.device.record import Item, Step, run_step, source_digest, state_of
from fairseq_plugins.benchmarks.device.setting import Setting


class Counting(Step):
    """Items "one", "two", "three", which count how often they are measured; those in ``broken`` raise."""

    name = "counting"

    def __init__(self, setting, broken=()):
        super().__init__(setting)
        self.broken, self.measured = broken, []

    def items(self):
        return [Item(name, lambda name=name: self.measure(name)) for name in ("one", "two", "three")]

    def measure(self, name):
        self.measured.append(name)
        if name in self.broken:
            raise self.broken[name]
        return {"length": len(name)}

    def tables(self, found):
        return f"measured: {', '.join(found)}"


@pytest.fixture
def setting(tmp_path):
    return Setting(device="cpu", folder=tmp_path)


def run(step, *, minutes=1, **options):
    return run_step(step, command="typed", minutes=minutes, **options)


def read(setting):
    return json.loads((setting.folder / "counting.json").read_text())


def test_what_the_folder_holds_is_not_measured_again(setting):
    first = Counting(setting)
    result = run(first)
    assert first.measured == ["one", "two", "three"] and (result.num_failed, result.num_left) == (0, 0)
    assert result.text == (setting.folder / "counting.md").read_text() and "toy size" in result.text
    assert read(setting)["items"] == {"one": {"length": 3}, "two": {"length": 3}, "three": {"length": 5}}
    second = Counting(setting)
    assert run(second).text == result.text and not second.measured
    run(second, kept="measured again", only=["two"])
    assert second.measured == ["two"]


def test_what_was_measured_with_other_flags_is_measured_again(setting):
    run(Counting(setting))
    (setting.folder / "counting.json").rename(setting.folder / "counting_patience_1.json")
    other = Counting(replace(setting, flags=["--patience", "1"]))
    run(other)
    assert other.report_name == "counting_patience_1" and other.measured == ["one", "two", "three"]
    assert Counting(replace(setting, flags=["--patience", "-1"])).report_name == "counting_patience_-1"


def test_a_call_that_has_no_time_left_says_what_is_left(setting):
    step = Counting(setting)
    assert run(step, minutes=1e-9).num_left == 3 and not step.measured
    assert run(step, only=["two"]).num_left == 0 and "2 items are not measured yet" in run(step, only=["two"]).text
    assert run(step).num_left == 0 and step.measured == ["two", "one", "three"]
    assert list(read(setting)["items"]) == ["one", "two", "three"]


def test_an_item_that_fails_is_kept_with_its_error_and_tried_again_after_the_others(setting):
    step = Counting(setting, {"one": RuntimeError("CUDA out of memory\nmore\nthe end")})
    result = run(step)
    assert step.measured == ["one", "two", "three"] and result.num_failed == 1
    error = read(setting)["items"]["one"]
    assert error == {"error": "RuntimeError: CUDA out of memory ... the end"} and state_of(error).startswith("FAILED: ")
    patched = Counting(setting)
    assert run(patched).num_failed == 0 and patched.measured == ["one"]


def test_an_interrupt_keeps_what_was_measured(setting):
    with pytest.raises(KeyboardInterrupt):
        run(Counting(setting, {"two": KeyboardInterrupt()}))
    assert list(read(setting)["items"]) == ["one"]


@pytest.mark.parametrize("what", ["source_digest", "describe_machine", "describe_code"])
def test_figures_of_other_code_or_another_machine_are_measured_anew(what, setting, monkeypatch):
    run(Counting(setting))
    monkeypatch.setattr(record, what, lambda: "another")
    step = Counting(setting)
    run(step)
    assert len(step.measured) == 3


def test_figures_of_other_data_are_measured_anew_and_other_flags_have_files_of_their_own(setting, tmp_path):
    run(Counting(setting))
    step = Counting(Setting(device="cpu", folder=tmp_path, flags=["--bf16"]))
    run(step)
    assert len(step.measured) == 3 and (tmp_path / "counting_bf16.json").exists()
    step = Counting(Setting(device="cpu", folder=tmp_path, data=[tmp_path]))
    run(step)
    assert len(step.measured) == 3 and read(setting)["data"] == [str(tmp_path)]


def test_a_gpu_that_no_longer_computes_ends_the_call(setting, monkeypatch):
    monkeypatch.setattr("fairseq_plugins.benchmarks.device.record._device_works", lambda: False)
    step = Counting(setting, {"one": RuntimeError("an illegal memory access")})
    result = run(step)
    assert step.measured == ["one"] and (result.num_failed, result.num_left) == (1, 2)
    monkeypatch.undo()
    run(step)
    assert step.measured == ["one", "two", "three", "one"]


@pytest.mark.parametrize("text", ["no JSON", "[]", "{}"])
def test_another_file_in_its_place_is_refused(text, setting):
    (setting.folder / "counting.json").write_text(text)
    with pytest.raises(ValueError, match="counting.json is no report of counting: move it away"):
        run(Counting(setting))


def test_a_name_that_no_item_has_is_refused(setting):
    with pytest.raises(ValueError, match="--only four: no item of counting has such a name"):
        run(Counting(setting), only=["four"])


def test_a_changed_source_has_another_digest(tmp_path):
    (tmp_path / "a.py").write_text("a = 1")
    before = source_digest(tmp_path)
    assert source_digest(tmp_path) == before
    (tmp_path / "a.py").write_text("a = 2")
    assert source_digest(tmp_path) != before
