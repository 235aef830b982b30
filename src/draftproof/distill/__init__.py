"""Train a draft head on a target's own text and hidden states.

Recording needs no torch; everything that trains imports it.
"""
