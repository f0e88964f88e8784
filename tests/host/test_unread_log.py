"""A training whose log has no reader; a few lines of log stand in for it."""

import inspect
import logging
import os
import sys

from forks import in_fork

from fairseq_plugins.host.unread_log import _heed_and_load


def log_to_nobody(load_checkpoint):
    """Log as a training does, after what it begins with, when the reader has gone."""
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, force=True)
    load_checkpoint(lambda: None)
    reader, writer = os.pipe()
    os.dup2(writer, 1)
    os.close(reader)
    os.close(writer)
    logging.info("an update")
    os.write(2, b"trained on")
    os._exit(0)


def test_it_ends_as_other_programs_do(tmp_path):
    ended = in_fork(lambda: log_to_nobody(_heed_and_load), folder=tmp_path)
    assert ended.status == 141 and "trained on" not in ended.err


def test_fairseq_alone_trains_on_without_a_log(tmp_path, monkeypatch):
    monkeypatch.setattr(logging.StreamHandler, "handleError", inspect.unwrap(logging.StreamHandler.handleError))
    ended = in_fork(lambda: log_to_nobody(lambda load: load()), folder=tmp_path)
    assert ended.status == 0 and "trained on" in ended.err


def test_errors_of_other_kinds_are_told_as_before(tmp_path):
    def log_wrongly():
        logging.basicConfig(stream=sys.stdout, level=logging.INFO, force=True)
        _heed_and_load(lambda: None)
        logging.info("%d", "no number")

    ended = in_fork(log_wrongly, folder=tmp_path)
    assert ended.status == 0 and "Logging error" in ended.err
