"""Interpolated modified Kneser-Ney smoothing by dictionaries, as Chen and Goodman's equations stand."""

from collections import Counter

START, END = "<s>", "</s>"
FALLBACK = {1: 0.5, 2: 1.0, 3: 1.5}


class PlainKneserNey:
    """A model of sentences, which are lists of words, over a vocabulary with the end mark."""

    def __init__(self, sentences, *, order, vocabulary):
        self.order = order
        self.vocabulary = vocabulary
        self.counts = {k: Counter() for k in range(1, order + 1)}
        for sentence in sentences:
            words = (START, *sentence, END)
            for k in self.counts:
                self.counts[k].update(words[i : i + k] for i in range(len(words) - k + 1))
        self.adjusted = {k: self._adjust(k) for k in self.counts}
        self.discounts = {k: self._discount(list(self.adjusted[k].values())) for k in self.counts}

    def _adjust(self, k):
        if k == self.order:
            adjusted = Counter(self.counts[k])
        else:
            # the words before an n-gram, each once; nothing stands before the start
            before = Counter(gram[1:] for gram in self.counts[k + 1])
            adjusted = Counter({gram: n if gram[0] == START else before[gram] for gram, n in self.counts[k].items()})
        del adjusted[START,]
        return adjusted

    @staticmethod
    def _discount(counts):
        n = {i: counts.count(i) for i in (1, 2, 3, 4)}
        if not n[1] * n[2] * n[3]:
            return FALLBACK
        y = n[1] / (n[1] + 2 * n[2])
        discounts = {i: i - (i + 1) * y * n[i + 1] / n[i] for i in (1, 2, 3)}
        return discounts if min(discounts.values()) > 0 else FALLBACK

    def prob(self, word, context):
        """P of a word after a tuple of words, of which the last order - 1 are read."""
        context = context[max(len(context) - self.order + 1, 0) :]
        k = len(context) + 1
        lower = self.prob(word, context[1:]) if context else 1 / len(self.vocabulary)
        followers = {gram: a for gram, a in self.adjusted[k].items() if gram[:-1] == context}
        total = sum(followers.values())
        if not total:
            return lower
        discount = {gram: self.discounts[k][min(a, 3)] for gram, a in followers.items()}
        seen = followers.get((*context, word), 0) - discount.get((*context, word), 0)
        return seen / total + sum(discount.values()) / total * lower

    def sentence_probs(self, sentence):
        """P of each word and of the end."""
        words = (START, *sentence, END)
        return [self.prob(word, words[:i]) for i, word in enumerate(words) if i]
