"""Verdicts on decoders: is the law right, how sure is that, and if not, which fault is it."""
