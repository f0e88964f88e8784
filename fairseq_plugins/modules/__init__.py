"""Building blocks of models. Importing the package registers the recurrent cells."""

from fairseq_plugins.modules import lstm  # noqa: F401
