"""Multi30k, task 1: captions of images in English, German and French, one file a split and language."""

from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path

from ..archives import is_sound
from ..downloads import download, mirror_urls
from ..errors import DataError
from ..lines import Row
from ..parallel_corpus import ParallelCorpus
from ..sources import aligned_files, check_digest, content_digest, plain_or_gz

SPLITS = {"train": "train", "valid": "val", "test": "test_2016_flickr"}

MIRRORS = [
    "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw",
    "https://github.com/multi30k/dataset/raw/master/data/task1/raw",
    "https://cdn.jsdelivr.net/gh/multi30k/dataset@master/data/task1/raw",
]

# SHA-256 of the text, without the compression.
CHECKSUMS = {
    "train.en": "460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6",
    "train.de": "2c2b73fd2b548fbcde3a875e0a78d6ee94d498bfdee6bd3eae3945779e9ddf72",
    "train.fr": "5925a3c18f1587b6b54b87743106e6e8ab93618edb6f65d19eac0621f853a10d",
    "val.en": "1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227",
    "val.de": "660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660",
    "val.fr": "5304e444d842e962b2dda4d816b70b22a1765b15401642b7ca37a67477e708dc",
    "test_2016_flickr.en": "399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182",
    "test_2016_flickr.de": "4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16",
    "test_2016_flickr.fr": "cb3160d69b002bb638e66cc7612fcd56cb0af82eadc9c142dedc438afb885ef6",
}


class Multi30k(ParallelCorpus):
    """Elliott et al. 2016, *Multi30K: Multilingual English-German Image Descriptions*; French: Elliott et al. 2017."""

    name = "multi30k"
    title = "Multi30k, task 1 (English, German, French; test_2016_flickr)"
    pairs = ["en-de", "de-en", "en-fr", "fr-en", "de-fr", "fr-de"]
    num_merges = 8000
    max_ratio = 0.0

    def find(self, folder: Path, options: Namespace) -> dict[str, Path]:
        """``SPLIT.LANGUAGE.gz``, or the same without compression."""
        files = {name: plain_or_gz(folder, name) for name in _names(options)}
        if missing := [f"{name}.gz" for name, path in files.items() if path is None]:
            raise DataError(f"{folder} has no {', '.join(missing)}: put it there, or leave out --from to download")
        return files

    def download(self, folder: Path, options: Namespace) -> None:
        """Each file by itself, from the first mirror that has it."""
        for name in _names(options):
            if not plain_or_gz(folder, name):
                path = folder / f"{name}.gz"
                download([(url, path) for url in mirror_urls(options.mirror or MIRRORS, path.name)], is_sound)

    def read(self, files: dict[str, Path], options: Namespace, scratch: Path) -> dict[str, Iterable[Row]]:
        """Train, valid and test."""
        if options.check:
            for name, path in files.items():
                check_digest(content_digest(path), CHECKSUMS[name], f"{name} in {path}")
        return {
            split: aligned_files(*(files[f"{stem}.{side}"] for side in options.sides)) for split, stem in SPLITS.items()
        }


def _names(options: Namespace) -> list[str]:
    return [f"{stem}.{side}" for stem in SPLITS.values() for side in options.sides]
