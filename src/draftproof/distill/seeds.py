"""Chat prompts that the target answers when the user brings no text of their own.

A prompt is a task joined to a topic, one that stands alone, or one about a text, which is
an answer that the target gave before. All of them are drawn from one seeded generator, so
that a corpus can be gone on with after an interruption.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

__all__ = ["HELD_OUT", "seed_messages"]

_TOPICS: Final = (
    "the water cycle", "bicycles", "black holes", "bread baking", "the French Revolution",
    "photosynthesis", "chess openings", "the human heart", "renewable energy", "ancient Rome",
    "jazz music", "volcanoes", "machine learning", "gardening", "the Moon landing", "coral reefs",
    "public libraries", "electric cars", "the stock market", "vaccines", "medieval castles",
    "coffee", "earthquakes", "the Amazon rainforest", "time zones", "penguins", "democracy",
    "sleep", "the printing press", "recycling", "Python lists", "binary search", "recursion",
    "databases", "the internet", "robots", "tea", "mountain hiking", "long distance running",
    "healthy breakfasts", "job interviews", "learning a language", "saving money",
    "moving to a new city", "adopting a dog", "space telescopes", "the Great Wall of China",
    "honey bees", "whales", "the piano", "oil painting", "soccer", "the Olympics", "trains",
    "airplanes", "weather forecasts", "rainbows", "gravity", "magnets", "atoms", "DNA",
    "evolution", "dinosaurs", "glaciers", "deserts", "oceans", "islands", "farmers markets",
    "video games", "board games", "poetry", "short stories", "newspapers", "photography",
    "cinema", "architecture", "bridges", "clocks", "calendars", "maps", "money", "taxes",
    "insurance", "teamwork", "leadership", "remote work", "stress", "meditation", "yoga",
    "nutrition", "vitamins", "antibiotics", "first aid", "cats", "horses", "butterflies",
    "spiders", "owls", "roses", "oak trees", "mushrooms", "rice", "chocolate", "cheese",
    "pasta", "soup", "salads", "picnics", "camping", "sailing", "swimming",
)  # fmt: skip
_TASKS: Final = (
    "Explain {} to a curious child.",
    "Write a short introduction to {}.",
    "Give me five interesting facts about {}.",
    "Write a short story that involves {}.",
    "What are the advantages and disadvantages of {}?",
    "Write a poem about {}.",
    "Summarise the most important things about {} in three sentences.",
    "How did {} change over the last hundred years?",
    "Write a friendly email to a colleague about {}.",
    "List the steps that a beginner should take to learn about {}.",
    "What questions do people often ask about {}? Answer two of them.",
    "Write a dialogue between a teacher and a student about {}.",
    "Compare {} with something similar.",
    "Why does {} matter?",
    "Write a quiz of four questions with answers about {}.",
    "Describe {} in detail.",
    "Write a blog post with a title and two paragraphs about {}.",
    "What would the world be like without {}?",
    "Tell me something surprising about {} and explain why it is so.",
    "Write an argument for and an argument against spending more time on {}.",
    "Can you help me plan a weekend around {}?",
    "Write a product description that has to do with {}.",
    "What is {}?",
    "Give a definition of {} and an example.",
)
_ALONE: Final = (
    "Write a Python function that returns the {} largest numbers of a list.",
    "Write a Python function that counts words in a text and prints the {} most frequent.",
    "Write a Python program that prints the first {} Fibonacci numbers.",
    "Write a Python class for a bank account with {} methods.",
    "Write a JavaScript function that reverses a string {} times.",
    "Write an SQL query that returns the {} newest orders of each customer.",
    "Solve step by step: a train drives {} km in 2 hours. What is its speed?",
    "Solve step by step: {} apples cost 12 dollars. What do 7 apples cost?",
    "What is {} times 12? Show your work.",
    "Rewrite this politely: send me the {} reports now.",
    "Translate into French: I would like {} tickets to Paris, please.",
    "Write a JSON object that describes a team of {} people.",
    "Make a table in Markdown with {} countries and their capitals.",
    "Write a letter of complaint about an order that is {} days late.",
    "Give me a recipe for {} people.",
    "Name {} European rivers and say where they flow.",
    "Tell me a joke, and then explain it in {} sentences.",
    "Write a dinner menu with {} courses.",
    "How can I fall asleep in {} minutes?",
    "Write a headline and {} sentences of news about a village festival.",
    "Why do cats sleep so much? Answer in {} sentences.",
    "What should I pack for {} days at the sea?",
    "Is {} a prime number? Explain how you know.",
    "My neighbour's music is loud at night. Write {} polite sentences to him.",
    "Who invented the telephone, and what came of it in the next {} years?",
    "Suggest {} names for a small bakery.",
    "Write a shell script that renames the {} newest files of a folder.",
    "Write a C function that sums an array of {} integers.",
    "Write an HTML page with a heading and a list of {} items.",
    "What does an HTTP server do when {} clients connect at once?",
    "Explain the difference between a list and a tuple with {} examples.",
    "Write a unit test for a function that splits a bill among {} friends.",
    "Write a function in Rust that checks whether a word of {} letters is a palindrome.",
    "Why is this error raised: list index out of range, when the list has {} entries?",
    "Draft the minutes of a meeting of {} people about a late project.",
    "Make a plan for {} weeks of training for a run of ten kilometres.",
    "Write {} lines of a conversation in a shoe shop.",
    "Once upon a time there was a lighthouse keeper. Go on with {} sentences.",
    "The old woman opened the letter after {} years. What happens next?",
    "What is the capital of Norway? Name {} things to see there.",
    "How many minutes are {} hours? Explain.",
    "Convert {} degrees Celsius to Fahrenheit.",
    "Translate into Spanish: the meeting begins in {} minutes.",
    "Translate into German: we need {} chairs for the guests.",
    "Give {} reasons to drink more water.",
    "I feel tired after {} hours at the computer. What can I do?",
    "What are the symptoms of a cold, and when should I see a doctor? {} points at most.",
    "Write a review of a hotel where you stayed for {} nights.",
    "Invent a riddle with {} hints and tell the answer.",
    "Explain what a contract is to someone who is {} years old.",
)
_ABOUT_TEXT: Final = (
    "Summarise this text in one or two sentences.\n\n{}",
    "Give this text a title and say what it is about.\n\n{}",
    "Rewrite this text in simpler words.\n\n{}",
    "Rewrite this text so that it sounds more formal.\n\n{}",
    "Correct the spelling and the grammar of this text.\n\n{}",
    "Copy the text below, and change nothing but its first sentence.\n\n{}",
    "Turn this text into a list of points.\n\n{}",
    "Which persons, places and numbers occur in this text? Make a list.\n\n{}",
    "Answer with yes or no and a reason: is this text friendly?\n\n{}",
    "Go on with this text.\n\n{}",
    "Ask three questions about this text and answer them.\n\n{}",
    "What could be wrong in this answer?\n\n{}",
    "Shorten this text by half.\n\n{}",
    "Write a reply to this message.\n\n{}",
)
#: Share of prompts about a text, where there are texts, and the longest text in characters.
_SHARE_ABOUT, _LONGEST = 0.35, 700
#: Share of prompts that name no topic.
_SHARE_ALONE: Final = 0.25
#: Of so many topics, and of so many pieces of a text, one is held out.
HELD_OUT: Final = 12


def seed_messages(
    generator: np.random.Generator, *, held_out: bool, texts: Sequence[str] = ()
) -> list[dict[str, str]]:
    """Return one chat that asks for an answer.

    Parameters
    ----------
    generator : numpy.random.Generator
        Chooses task and topic.
    held_out : bool
        Whether the prompt is for measuring: its topic never occurs in other prompts, and it
        is about no text.
    texts : sequence of str
        Texts that a prompt may be about.

    Returns
    -------
    list of dict
        One turn of the user.
    """
    if texts and not held_out and generator.random() < _SHARE_ABOUT:
        about = texts[int(generator.integers(len(texts)))][:_LONGEST]
        text = str(generator.choice(_ABOUT_TEXT)).format(about)
    elif not held_out and generator.random() < _SHARE_ALONE:
        text = str(generator.choice(_ALONE)).format(int(generator.integers(2, 60)))
    else:
        topics = [
            topic for at, topic in enumerate(_TOPICS) if (at % HELD_OUT == HELD_OUT - 1) == held_out
        ]
        text = str(generator.choice(_TASKS)).format(str(generator.choice(topics)))
    return [{"role": "user", "content": text}]
