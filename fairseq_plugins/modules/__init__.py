"""Building blocks of models. Importing the package registers the recurrent cells."""

from fairseq_plugins.modules import (  # noqa: F401
    lstm,
    major_minor_lstm,
    mogrifier_lstm,
    recurrent_highway,
    simple_rnn,
)
