"""Programs that run in another Python, where a foreign engine is installed.

``loop.py`` is the program; a file per engine stands beside it. None of them may import
``draftproof``: the other Python does not have it. They keep to Python 3.9.
"""
