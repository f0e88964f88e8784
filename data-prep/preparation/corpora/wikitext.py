"""WikiText-2 and WikiText-103, word level; blank lines are part of the corpora, each is one end mark."""

from ..text_corpus import ArchivedText, Counts

MIRRORS = ("https://s3.amazonaws.com/research.metamind.io/wikitext", "https://wikitext.smerity.com")
HELD_OUT = {"valid": Counts(217646, 3760), "test": Counts(245569, 4358)}

# Neither the end mark nor <unk> has a row in the dictionary: both are the host's own symbols.
WIKITEXT_2 = ArchivedText(
    name="wikitext-2",
    title="WikiText-2, word level",
    archive="wikitext-2-v1.zip",
    members="wikitext-2/wiki.*.tokens",
    archive_mirrors=MIRRORS,
    checksums={
        "train": "9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f",
        "valid": "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8",
        "test": "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0",
    },
    counts={"train": Counts(2088628, 36718), **HELD_OUT},
    num_rows=33276,
)
WIKITEXT_103 = ArchivedText(
    name="wikitext-103",
    title="WikiText-103, word level",
    archive="wikitext-103-v1.zip",
    members="wikitext-103/wiki.*.tokens",
    archive_mirrors=MIRRORS,
    counts={"train": Counts(103227021), **HELD_OUT},
    num_rows=267733,
)
