"""Building blocks of models. Importing the package registers the recurrent cells."""

from fairseq_plugins.modules import (  # noqa: F401
    diagonal_rnn,
    lstm,
    major_minor_lstm,
    mogrifier_lstm,
    rectifier_rnn,
    recurrent_highway,
    variational_lstm,
)
