"""Identifier words of the generated ladder.

Owns one list of plain English words, used for function and module names, and its split by the hold-out rule. A held-out
word never appears in training data, so a policy that meets it must copy it from what it has read.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from etude.tasks.holdout import is_held_out

_TEXT = """
acorn adopt alarm album alley amber anchor angle apple apron arch arrow aspen atlas attic autumn award bacon
badge baker bamboo banner barley barn basin basket beach beacon beam bench berry birch blaze blend bloom board
bolt bonus border bottle bounce branch brass bread breeze brick bridge bronze brook brush bucket bundle butter
button cabin cable cactus camel camera candle canoe canvas canyon carbon cargo carpet carrot castle cedar cellar
chain chalk charm chart cherry chess cider circle citrus clamp clay cliff clock cloud clover coach coast cobalt
comet copper coral corner cotton cradle crane crate crayon creek crest crown crystal curve cycle daisy dance
delta denim depot desert diary dinner dock dolphin donkey drift drum dune eagle earth echo elbow ember engine
estate fabric falcon farm feast feather fence fern ferry fiddle field flame flask fleet flint flora flute forest
forge fossil fountain frame frost fruit galaxy garden garlic gather ginger glacier glide globe glove grain
granite grape gravel grove guitar gutter hammer harbor harvest hatch hazel heron hill hinge honey hoop horizon
hotel hover igloo indigo iron island ivory jacket jasmine jelly jewel jungle kayak kernel kettle kiosk kitten
ladder lagoon lake lantern latch lattice lava lemon level lichen lilac linen lizard lobby locket lotus lumber
lunar magnet mango maple marble margin market marsh mason meadow melon merge metal meteor midnight mill mint
mirror mitten moss motor mound museum nectar needle nest nickel night noodle north nutmeg oasis oat ocean olive
onion opal orbit orchid otter oven owl oyster paddle pagoda paint palace panda panel paper parade parcel parrot
pasta patch path peach pearl pebble pecan pedal pencil pepper petal piano picnic pillow pilot pine pixel plain
planet plank plaza plum pocket polar pond poppy portal potato prairie prism pulley pumpkin puzzle quail quartz
quill quilt rabbit radar radish rain ranch raven reef relay ribbon ridge ring ripple river robin rocket rose
ruby saddle saffron sail salmon sand satin scale scarf scout seed shadow shell shield ship shore silk silver
siren sketch slate sleet smoke snow solar spark spice spindle spiral spoon spring spruce square stable star
steam stone storm stream studio sugar summit sunset surf swan sword syrup table talon tango tarp teapot temple
tent thistle thorn thread thunder ticket tiger timber toast tower trail tram travel trellis tribe trout tulip
tundra tunnel turbine turnip twig umber valley vanilla vapor velvet vessel village vine violet voyage wagon
walnut water whale wheat wheel willow window winter wolf wonder wool yacht yarn yogurt zebra zenith zinc
"""
WORDS = tuple(_TEXT.split())
TRAIN_WORDS = tuple(word for word in WORDS if not is_held_out("word", word))
HELD_OUT_WORDS = tuple(word for word in WORDS if is_held_out("word", word))

KNOWN_SHARE, SYLLABLES_SHARE = 0.4, 0.2
"""Shares of names in training tasks and drills that are training words, and that are syllables; the rest are spliced.
Names that are no word are hardly seen twice, so they must be copied, not recalled.
"""
_SYLLABLES = [consonant + vowel for consonant in "bcdfghjklmnprstvwz" for vowel in "aeiou"]
_PYTHON = """
assert bool break class code copy crypt else email enum float from hash iter json list locale math mode open pass print
quit raise range round shelve site slice socket stat string super this time token trace tuple turtle wave with yield
"""
_TAKEN = {*WORDS, *_PYTHON.split()}


def syllables(rng: random.Random) -> str:
    """A name of two to four syllables, such as `zofibo`, that is no word of the list."""
    return _free(lambda: "".join(rng.choice(_SYLLABLES) for _ in range(rng.randint(2, 4))))


def spliced(rng: random.Random) -> str:
    """The head of one training word and the tail of another, such as `lantarn`: spelt like a word that is new."""

    def draw() -> str:
        head, tail = rng.choice(TRAIN_WORDS), rng.choice(TRAIN_WORDS)
        return head[: rng.randint(1, len(head) - 1)] + tail[rng.randint(1, len(tail) - 1) :]

    return _free(draw)


def _free(draw: Callable[[], str]) -> str:
    while True:
        name = draw()
        if 4 <= len(name) <= 9 and name not in _TAKEN:
            return name


def training_name(rng: random.Random) -> str:
    roll = rng.random()
    if roll < KNOWN_SHARE:
        return rng.choice(TRAIN_WORDS)
    return syllables(rng) if roll < KNOWN_SHARE + SYLLABLES_SHARE else spliced(rng)


def draw_names(rng: random.Random, count: int, held_out: bool) -> list[str]:
    """Distinct names: held-out words, or training names."""
    if held_out:
        return rng.sample(HELD_OUT_WORDS, count)
    names: dict[str, None] = {}
    while len(names) < count:
        names[training_name(rng)] = None
    return list(names)
