"""Detokenizers: golden strings. What is expected was computed once with the published functions, quirks included."""

import re

import pytest

from unmask.data import detokenize
from unmask.data.detokenize import DETOKENIZERS, detokenizer
from unmask.types import UserError

GOLDEN = [
    ("wikitext", "the boys ' toys and the bus 'stop", "the boys'toys and the bus'stop"),  # after every s
    ("wikitext", "in the ' 90s , see /' 5/ there", "in the '90s, see /'[0-9]/ there"),  # slashes in the pattern
    ("wikitext", "a well @-@ known 1 @,@ 000 @.@ 5", "a well-known 1,000.5"),
    ("wikitext", "one : two ; three . four ! five ? six , seven", "one: two; three. four! five? six, seven"),
    ("wikitext", "one : : two , , end .", "one: : two, , end ."),  # shared spaces, and none at the end
    ("wikitext", "( a ) [ b ] { c } ( ( d ) )", "(a) [b] {c} (( d) )"),
    ("wikitext", 'he said " yes " and " no " and " maybe', 'he said "yes" and "no" and " maybe'),
    ("wikitext", "the ' quick ' fox 's tail", "the 'quick' fox's tail"),
    ("wikitext", " = = = = Deep = = = = \n", " ==== Deep ====\n"),
    ("wikitext", " = = = = = Deeper = = = = = \n", " ===== Deeper =====\n"),
    ("wikitext", " = = = Sub = = = \n", " === Sub ===\n"),
    ("wikitext", " = = Section = = \n", " == Section ==\n"),
    ("wikitext", " = Title = \n", " = Title =\n"),
    ("wikitext", "at 20 ° C , 5 °", "at 20°C, 5 °"),
    ("wikitext", "line one \n line two\n", "line one\nline two\n"),
    ("wikitext", "John N Smith N N Doe", "John 1 Smith 1 N Doe"),  # names, and every second one only
    ("wikitext", "Mary 's lamb 's", "Mary's lamb's"),
    ("ptb", "mr. smith 's dogs ' tails did n't move", "mr. smith's dogs' tails didn't move"),
    ("ptb", "one \n two \n", "one\ntwo \n"),
    ("ptb", "1\\/2 of it", "1/2 of it"),
    ("ptb", "N N N N of N", "N 1 1 1 of N"),  # not at the ends of a row
    ("ptb", "from N to N N and N", "from 1 to 1 1 and N"),
    ("ptb", "a $ N billion loss and # N million", "a $1 billion loss and #1 million"),
    ("ptb", "the <unk> of <unk>", "the ? of ?"),
    (
        "lm1b",
        "see http : / / www.example.com and https : / / x.org",
        "see http://www.example.com and https://x.org",
    ),
    ("lm1b", "it 's , isn 't it 'quoted", "it's, isn't it'quoted"),
    ("lm1b", "He left . She stayed .", "He left. She stayed."),
    ("lm1b", "the U.S. . He said ) . Then ( no ) .", "the U.S. . He said ) . Then (no) ."),  # after words only
    ("lm1b", "Really ? Yes ! No ? Why !", "Really? Yes! No? Why!"),
    ("lm1b", "Who knows ?", "Who knows?"),
    ("lm1b", "one , two : three ; four / five", "one, two: three; four/five"),
    ("lm1b", '" house arrest , " he said " again "', '"house arrest," he said "again"'),
    (
        "lm1b",
        "' single ' and ( round ) and [ square ] and ( ( deep ) )",
        "'single' and (round) and [square] and ( (deep) )",
    ),
    ("lm1b", "$ 5 and £ 6 and € 7", "$5 and £6 and € 7"),
    ("lm1b", "a b . c . d . e", "a b. c . d. e"),  # matches share a space
    ("lm1b", "the end .\n", "the end.\n"),
    ("lambada", "  “Hello,” she said. \n", '\n"Hello," she said.'),
    ("lambada", "one\n\n“two” ‘three’", '\none\n\n"two" ‘three’'),
    ("scientific", "we show ( x ) that y ' s value is 5 . \n", "we show (x) that y ' s value is 5.\n"),
    ("scientific", "for T N pension , they are 'disappointed' now", "for T 1 pension, they are'disappointed' now"),
    ("scientific", " see http : / / a.b . it is good .", " see http:// a.b. it is good."),  # the order shows
]


@pytest.mark.parametrize(("name", "text", "expected"), GOLDEN)
def test_golden(name, text, expected):
    assert detokenizer(name)(text) == expected


@pytest.mark.parametrize("name", ["wikitext", "ptb", "lm1b"])
def test_every_rule_is_seen(name):
    """Without any one rule, a golden string comes out differently (repeated rules count as one)."""
    rules = getattr(detokenize, f"_{name.upper()}")
    cases = [(text, expected) for own, text, expected in GOLDEN if own == name]
    for rule in dict.fromkeys(rules):
        others = tuple(other for other in rules if other != rule)
        assert any(detokenize._apply(others, text) != expected for text, expected in cases), rule


def test_rules_are_versioned():
    """Golden: the rules name caches by RULES, so other rules need another number."""
    shown = [(what.pattern if isinstance(what, re.Pattern) else what, new) for what, new in detokenize._WIKITEXT]
    counts = [len(getattr(detokenize, f"_{name}")) for name in ("WIKITEXT", "PTB", "LM1B")]
    assert (detokenize.RULES, counts, shown[0]) == (1, [24, 18, 19], ("s '", "s'"))


def test_a_typo_names_the_nearest():
    assert set(DETOKENIZERS) == {"wikitext", "ptb", "lm1b", "lambada", "scientific", "mojibake"}
    with pytest.raises(UserError, match=r"unknown detokenizer 'wikitex' \(did you mean 'wikitext'\?\); set data\.deto"):
        detokenizer("wikitex")
