"""Laws, policies, coins and counters: the definitions every other room shares.

numpy only, no input or output, no knowledge of models or sessions.
"""

from __future__ import annotations
