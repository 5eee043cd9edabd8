"""A parallel corpus, English and German, made at run time from the locale data (CLDR) that Babel carries.

    python -m synthetic_attention.data.cldr FOLDER [--train 15000] [--held-out 500] [--seed 1]

Short phrases with dates, times, numbers, money, quantities, and names of countries, cities, languages and more. To be
learned are the vocabulary, the order of words and of the parts of a date, and how each language writes figures. `test`
has new combinations of what training shows; `test_templates` has sentences that training does not show.
"""

from .corpus import LANGUAGES, Phrase, default_data, make_corpus, write_cldr_corpus

__all__ = ["LANGUAGES", "Phrase", "default_data", "make_corpus", "write_cldr_corpus"]
