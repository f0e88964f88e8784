"""The C library's allocator in trainings with DRILL: less memory kept of freed tensors."""

import os
import platform
import re
from typing import Dict, Sequence

TUNABLES = "glibc.malloc.tcache_count=0"
"""Value of ``GLIBC_TUNABLES``: no cache of small freed blocks for a thread.

An aligned block leaves two small remainders. In that cache they are handed out again and so keep the large block
between them from being joined and reused: with DRILL, blocks of 16 MB pile up. A fixed ``MALLOC_MMAP_THRESHOLD_`` saves
as much, but every tensor then comes as fresh pages, which took a fifth of the speed where it was measured.
"""

DRILL = re.compile(r"(--(arch|output-layer|label-encoder)|-a)[= ]\S*drill")
"""In the command line of a training that gains; others keep their allocator, which is a few percent faster."""

VARIABLES = (
    "GLIBC_TUNABLES",
    "MALLOC_ARENA_MAX",
    "MALLOC_ARENA_TEST",
    "MALLOC_MMAP_MAX_",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TOP_PAD_",
    "MALLOC_TRIM_THRESHOLD_",
)
"""By which a user sets the allocator."""


def training_environment(arguments: Sequence[str]) -> Dict[str, str]:
    """Environment of a training: this process's, for DRILL with :data:`TUNABLES`.

    They are left out where the user has set the allocator, or where the C library is not glibc. They are read at the
    start of a process, so the environment of one that trains is their place; ``mallopt`` does not have this one.

    Args:
        arguments: of ``fairseq-train``.
    """
    set_by_user = any(name in os.environ for name in VARIABLES)
    gains = platform.libc_ver()[0] == "glibc" and DRILL.search(" ".join(arguments)) is not None
    return {**os.environ, **({"GLIBC_TUNABLES": TUNABLES} if gains and not set_by_user else {})}
