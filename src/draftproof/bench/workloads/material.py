"""Names, places and sentences that prompts are composed from."""

from __future__ import annotations

from typing import Final

__all__ = [
    "ADVICE",
    "EVENTS",
    "EXPLAINED",
    "GOODS",
    "JOBS",
    "MOODS",
    "NAMES",
    "OBJECTS",
    "PLACES",
    "SENTENCES",
    "TOWNS",
    "WEATHER",
    "WEEKDAYS",
]

NAMES: Final = (
    "Anna", "Peter", "Lucia", "Karim", "Ingrid", "Tomas", "Mei", "Oskar", "Nadia", "Hugo",
    "Salma", "Viktor", "Elena", "Kofi", "Marta", "Jonas", "Priya", "Felix", "Rosa", "Idris",
    "Clara", "Anton", "Leila", "Bruno",
)  # fmt: skip
PLACES: Final = (
    "the bridge", "the mill", "the school", "the harbour", "the old gate", "the library",
    "the station", "the market hall", "the workshop", "the town hall", "the lighthouse",
    "the garden behind the church", "the post office", "the boat house", "the bakery",
    "the reading room",
)  # fmt: skip
TOWNS: Final = (
    "Alderbrook", "Nordhavn", "Vallmora", "Stonefield", "Riverton", "Kesselbach", "Montclair",
    "Ostrava", "Marisol", "Eastwick", "Lindau", "Torre Alta",
)  # fmt: skip
GOODS: Final = (
    "apples", "pears", "bread", "cheese", "honey", "paper", "candles", "rope", "salt", "tea",
    "lamp oil", "nails", "linen", "ink", "soap", "dried fish", "barley", "copper wire",
    "paint", "string", "coffee", "flour", "wool", "glass jars",
)  # fmt: skip
JOBS: Final = (
    "a clock maker", "a ferry pilot", "a bee keeper", "a night guard", "a young cartographer",
    "a retired teacher", "a piano tuner", "a radio operator", "a gardener", "a glass blower",
    "a train driver", "a lighthouse keeper", "a baker", "a translator", "a bridge engineer",
    "a museum guide",
)  # fmt: skip
WEEKDAYS: Final = (
    "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday",
)  # fmt: skip
MOODS: Final = (
    "calm", "funny", "sad but hopeful", "mysterious", "warm", "dry", "suspenseful", "dreamlike",
)  # fmt: skip
WEATHER: Final = (
    "heavy rain", "the first snow", "a long drought", "thick fog", "a storm from the sea",
    "an unusually warm autumn", "a clear night with many stars", "a sudden hail",
)  # fmt: skip
OBJECTS: Final = (
    "a key without a lock", "a letter that was never sent", "a map with a missing corner",
    "a bell that rings by itself", "a box of unlabelled seeds", "a watch that runs backwards",
    "a notebook in an unknown script", "a lantern that does not go out", "a broken compass",
    "a photograph of an empty street", "a coin from no known country", "a torn ticket",
)  # fmt: skip
EVENTS: Final = (
    "learns that the last boat has left", "finds a door that was not there yesterday",
    "has to keep a promise made to a stranger", "must choose between two honest answers",
    "hears a familiar song from far away", "loses the way home", "receives a visitor at midnight",
    "discovers why the clock always stopped at four", "tries to mend an old quarrel",
    "is given one day to find the owner", "decides to tell the truth at last",
    "teaches a child to swim",
)  # fmt: skip
#: Each takes any of: name, other, place, where, goods, more, number, day, hour, town, price.
SENTENCES: Final = (
    "{name} left the house at {hour} in the morning and walked to {place}.",
    "At {place} {name} bought {number} boxes of {goods} and some {more}.",
    "On the way back {name} stopped at {where} and spoke with {other} about the {goods}.",
    "{other} had brought {more} from {town} and wanted {price} crowns for it.",
    "By {hour} o'clock everything was on the cart, and {name} paid {price} crowns.",
    "On {day} the road to {town} was closed, so {name} took the path behind {where}.",
    "{name} wrote down what had been bought and given: {goods}, {more}, and {number} bags of salt.",
    "The keeper of {place} told {name} that the {more} had arrived on {day}.",
    "{other} offered to carry the {goods} as far as {where}, and {name} agreed.",
    "In the evening {name} counted {number} coins and put them into the tin box.",
    "A letter from {town} said that the price of {goods} would rise to {price} crowns.",
    "{name} and {other} met again at {where} on {day}, shortly after {hour} o'clock.",
    "Nobody at {place} had seen the {goods} that {other} was looking for.",
    "The next day {name} went back to {place}, because the {more} had been left there.",
    "{other} repaired the roof of {where} in {number} days and asked for {more} in return.",
    "When the rain stopped, {name} opened the doors of {place} and let the visitors in.",
    "Of the {number} jars that {name} had packed, only three reached {town} unbroken.",
    "{name} promised {other} to return the {goods} before {day}.",
)
#: Things whose working can be explained.
EXPLAINED: Final = (
    "a refrigerator", "a sailing boat that goes against the wind", "a mechanical clock",
    "a bicycle gear", "a microwave oven", "rainbows", "vaccines", "the tides", "a compass",
    "noise-cancelling headphones", "a solar cell", "yeast in bread", "a steam engine",
    "public-key encryption", "the seasons", "a touch screen", "a telescope", "inflation",
    "a lock and its key", "a hot-air balloon", "paper recycling", "a search engine", "memory",
    "a greenhouse",
)  # fmt: skip
#: Things that one may want advice on.
ADVICE: Final = (
    "buying a used bicycle", "starting a new job", "learning a language alone",
    "moving to another town", "growing tomatoes on a balcony", "preparing for an interview",
    "saving money on heating", "keeping a diary", "planning a long hike", "cooking for ten guests",
    "choosing a first telescope", "giving a short speech", "repairing a squeaking door",
    "sleeping better", "reading more books", "taking good photographs in the rain",
    "organising a small library", "training for a ten-kilometre run",
    "explaining a mistake to a colleague", "packing for a week with one small bag",
)  # fmt: skip
