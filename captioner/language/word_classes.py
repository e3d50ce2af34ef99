"""English function words, and a measure of incomplete captions.

The function words follow Quirk, Greenbaum, Leech, Svartvik, "A Comprehensive Grammar of the English
Language" (1985), in the spelling of the Penn Treebank tokenizer. Numerals are content words, since
an image shows the number of objects. Prepositions are function words, although "on" and "under"
describe positions.
"""

from collections.abc import Collection

_CLASSES = {
    "determiners": """
        a an the this that these those some any no every each either neither both all such another
        other what which whatever whichever several many much few more most less least own same""",
    "pronouns": """
        i you he she it we they me him her us them my your his its our their mine yours hers ours
        theirs myself yourself himself herself itself ourselves yourselves themselves oneself one
        ones others who whom whose someone somebody something anyone anybody anything everyone
        everybody everything nobody nothing none""",
    "prepositions": """
        of in on at to from for by with without into onto upon over under above below beneath
        underneath behind beside besides between among amongst amid amidst through throughout
        across along alongside around about against near toward towards up down off out outside
        inside within past before after during until till since as like than per via atop beyond
        despite except""",
    "conjunctions": """
        and or but nor so yet if while when where whether because although though unless whereas""",
    "auxiliaries": """
        be am is are was were been being do does did doing done have has had having can could may
        might must shall should will would 's 're 've 'm 'd 'll ca wo""",
    "particles and pronominal adverbs": """
        not n't there here then too also very just only even still how why ' 'em together""",
}
FUNCTION_WORDS = frozenset(word for words in _CLASSES.values() for word in words.split())

# Captions that end in these words are incomplete; optimising n-gram scores produces some.
_DETERMINERS = {"a", "an", "the", "his", "her", "their", "its"}
_PREPOSITIONS = {"with", "of", "in", "on", "at", "to", "from", "for", "by", "into", "onto"}
_BAD_ENDINGS = _DETERMINERS | _PREPOSITIONS | {"and", "or", "is", "are"}


def fluency(captions: Collection[str]) -> dict[str, float]:
    """Measure incomplete captions, which n-gram scores do not penalise; needs at least one caption.

    Returns ``mean_length`` in words, and ``bad_endings``, the percentage of captions that end in a
    determiner, a preposition, "and", "or", "is" or "are".
    """
    words = [caption.rstrip(" .").split() for caption in captions]
    broken = sum(bool(w) and w[-1].lower() in _BAD_ENDINGS for w in words)
    return {
        "mean_length": round(sum(map(len, words)) / len(words), 2),
        "bad_endings": round(100 * broken / len(words), 2),
    }
