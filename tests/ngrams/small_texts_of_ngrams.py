"""Small texts as lines of words, and as streams."""

import random

import torch


def random_lines(*, num_words, num_lines=120, seed=1):
    """Lines of up to nine words, some blank; word i is twice as frequent as word 2 i."""
    draw = random.Random(seed)
    words = [f"w{i}" for i in range(num_words)]
    weights = [1 / (i + 1) for i in range(num_words)]
    return [draw.choices(words, weights, k=draw.randrange(10)) for _ in range(num_lines)]


def stream_of(lines, dictionary):
    """The numbers of the words, an end mark after each line."""
    return torch.tensor([dictionary.index(word) for line in lines for word in (*line, "</s>")], dtype=torch.int64)


def vocabulary_of(dictionary):
    """The words that a model predicts."""
    return [symbol for symbol in dictionary.symbols if symbol not in ("<s>", "<pad>")]
