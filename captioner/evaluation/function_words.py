"""The words of English that name nothing in a picture: its closed classes.

After the lists of Quirk, Greenbaum, Leech, Svartvik, "A Comprehensive Grammar of the English
Language" (1985), as the Penn Treebank's tokenizer splits words. Numbers are not among them: a picture
shows how many. Prepositions are, though "on" and "under" say where something is.
"""

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
