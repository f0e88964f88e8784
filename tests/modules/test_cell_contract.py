"""Every value of --rnn-cell keeps to the contract of recurrent cells."""

import pytest
from cell_contract import CellContract

from fairseq_plugins.modules.recurrent_cell import RECURRENT_CELLS

# what is near zero would be lost in 32 bits
FLAGS = {"smooth-rectifier": {"rectifier_smoothing": 0.01}}
CASES = [(cell, FLAGS.get(cell, {})) for cell in sorted(RECURRENT_CELLS)] + [
    ("lstm", {"rnn_biases": "one"}),
    ("mmlstm", {"rnn_biases": "one"}),
    ("mmlstm", {"minor_input": "previous"}),
    ("mmlstm", {"major_proportions": "0.6 1"}),
    ("variational", {"rnn_biases": "one"}),
    ("rhn", {"transform_input": "candidate"}),
    ("rhn", {"recurrence_depth": 1}),
    ("mogrifier", {"mogrifier_rank": 3}),
    ("mogrifier", {"mogrifier_rounds": 0}),
    ("diagonal", {"transition": "full"}),
]


class TestEveryCell(CellContract):
    @pytest.fixture(params=CASES, ids=lambda case: " ".join([case[0], *map(str, case[1].values())]))
    def case(self, request):
        return request.param
