"""Installation of fairseq_plugins; exact versions that were tested are in requirements.txt."""

import re
from pathlib import Path

from setuptools import find_packages, setup

PACKAGE = Path(__file__).with_name("fairseq_plugins")
VERSION = re.compile(r'^__version__ = "(.+)"$', re.MULTILINE)

setup(
    name="fairseq-plugins",
    version=VERSION.findall(PACKAGE.joinpath("__init__.py").read_text(encoding="utf-8"))[0],
    description="fairseq plugins: recurrent models of language and translation, output layers of any model",
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="MIT; the text in fairseq_plugins/demo_corpus: CC BY 2.0 FR",
    packages=find_packages(include=["fairseq_plugins", "fairseq_plugins.*"]),
    package_data={"fairseq_plugins": ["demo_corpus/*", "serving/page.html"]},
    entry_points={"console_scripts": ["fairseq-plugins = fairseq_plugins.commands.app:main"]},
    python_requires=">=3.11",
    install_requires=[
        "torch>=2.6,<2.15",  # calls a few of its private operators
        "ve-fairseq>=0.12.3",  # imports as fairseq; the official 0.12.2 cannot be imported on Python >= 3.11
        "numpy",
        "scipy",
        "sacrebleu>=2.6,<2.7",  # metrics/corpus.py calls two of its private methods
        "rouge-score",
        "regex",
        "sentencepiece",
        "subword-nmt",
        "sacremoses",
        "matplotlib",
        "tabulate",
        "tqdm",
        "tensorboardX",  # fairseq asks for it at each start
    ],
    extras_require={
        "tensorboard": ["tensorboard"],
        "hf": ["tokenizers"],  # "tokenizer": "hf:PATH" in text.json
        "serve": ["fastapi", "uvicorn"],
        "dev": ["filelock", "pytest", "pytest-cov", "pytest-xdist", "hypothesis", "ruff", "pyrefly"],
    },
)
