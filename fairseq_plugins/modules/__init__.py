"""Building blocks of models. Importing the package registers the recurrent cells."""

from fairseq_plugins.modules import lstm, major_minor_lstm, variational_lstm  # noqa: F401
