"""Which answers repeat their question, and which repeat nothing? Chat messages for measuring speculation.

The texts are written for this. The small default model does what the first set asks for well enough that most of its
answers are copies with changes; of the second it has to make everything up.
"""

from __future__ import annotations

_NOTICE = (
    "Riverside Library will be closed from Monday 3 March to Friday 14 March while the heating is replaced. Books that "
    "are due in this time may be returned until Saturday 22 March without a fine. The book drop at the back door stays "
    "open day and night. Reservations can be picked up at the town hall, room 12, from 9 to 5. The reading group meets "
    "at the Blue Door Cafe on Tuesday 4 March and Tuesday 11 March at half past seven."
)
_RECIPE = (
    "Heat the oven to 180 degrees. Melt 120 grams of butter in a small pan and let it cool. Beat three eggs with 150 "
    "grams of sugar until the mixture is pale and thick. Stir in the melted butter, then fold in 150 grams of flour, a "
    "pinch of salt and the grated peel of one lemon. Pour the batter into a buttered tin and bake it for 35 minutes. "
    "Let the cake rest in the tin for ten minutes before you turn it out."
)
_LETTER = (
    "Dear Mrs. Hall, thank you for your order of 24 April. The two oak chairs left our workshop this morning and will "
    "reach you on Thursday between 10 and 12. The small table needs another week, because the varnish has to dry. We "
    "will call you the day before it is delivered. The invoice is in the envelope under the left chair. If anything is "
    "not as it should be, please write to us within 14 days. Yours sincerely, Peter Marsh"
)
_CODE = (
    "def read_scores(path):\n    scores = {}\n    with open(path) as file:\n        for line in file:\n"
    "            name, value = line.split(',')\n            scores[name] = int(value)\n    return scores\n\n\n"
    "def best_player(scores):\n    best = None\n    for name in scores:\n"
    "        if best is None or scores[name] > scores[best]:\n            best = name\n    return best\n\n\n"
    "def average(scores):\n    total = 0\n    for name in scores:\n        total = total + scores[name]\n"
    "    return total / len(scores)\n"
)
_REPORT = (
    "The bridge over the Elm was inspected on 9 September. The deck is sound, but the paint of the railing is flaking "
    "on the north side. Two of the eight bearings show rust and have to be cleaned before winter. The joint at the "
    "east end leaks, and water runs down the pier. We recommend to replace the joint next spring and to look at the "
    "pier again in a year. Until then the bridge can carry lorries of up to 18 tonnes."
)

_REPEAT = "Repeat the following text exactly, word for word.\n\n"
_CORRECT = "Correct the spelling mistakes in the following text. Leave everything else as it is.\n\n"


def _misspelt(text: str) -> str:
    for right, wrong in (("the ", "teh "), ("will", "wil"), ("before", "befor"), ("minutes", "minuts")):
        text = text.replace(right, wrong, 2)
    return text


REPEATING = (
    _REPEAT + _NOTICE,
    _REPEAT + _RECIPE,
    _REPEAT + _LETTER,
    _REPEAT + _REPORT,
    "Repeat the following code exactly.\n\n" + _CODE,
    _CORRECT + _misspelt(_NOTICE),
    _CORRECT + _misspelt(_RECIPE),
    _CORRECT + _misspelt(_LETTER),
    _CORRECT + _misspelt(_REPORT),
    "Repeat the following text, but write November instead of March.\n\n" + _NOTICE,
    "Repeat the following text, but write orange instead of lemon.\n\n" + _RECIPE,
    "Repeat the following text, but write Mr. Stone instead of Mrs. Hall.\n\n" + _LETTER,
    "Repeat the following text, but write river instead of Elm.\n\n" + _REPORT,
    "Rename the variable scores to points in the following code.\n\n" + _CODE,
    "Add a comment above each function of the following code.\n\n" + _CODE,
    "Copy the following text and put each sentence on a line of its own.\n\n" + _NOTICE,
    "Copy the following text and put each sentence on a line of its own.\n\n" + _RECIPE,
    "Copy the following text and put each sentence on a line of its own.\n\n" + _REPORT,
    "Summarize the following text by copying its most important sentences.\n\n" + _LETTER,
    "Summarize the following text by copying its most important sentences.\n\n" + _REPORT,
)

VARIED = (
    "Write a short story about a lighthouse keeper who finds a message in a bottle.",
    "Explain why the sky is blue to a child.",
    "Describe a walk through a forest in autumn.",
    "What should I think about before I adopt a dog?",
    "Tell me about the history of bread.",
    "Write a letter to a friend who moved to another country.",
    "How does a sailing boat go against the wind?",
    "Describe the taste of coffee to somebody who never had any.",
    "Why do people like to listen to music?",
    "Write a speech for the opening of a small museum.",
    "How do bees make honey?",
    "Write a dialogue between a river and a mountain.",
    "What makes a good teacher?",
    "Describe a market in a town by the sea on a hot morning.",
    "Explain how a bicycle stays upright.",
    "Write about the day on which all clocks stopped.",
    "What is the difference between weather and climate?",
    "Describe the first snow of the year through the eyes of a cat.",
    "How can a shy person make friends?",
    "Write a review of a restaurant on the moon.",
)
