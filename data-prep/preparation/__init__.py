"""From the files of a corpus to fairseq's binaries: one framework, and the corpora in it."""

ACTIVATE = "activate the environment that fairseq is installed in"  # here, where no import can fail
