"""When speculation pays: costs, acceptance, plans, and the run-time controller.

Pure functions and frozen values. This room knows files of configuration and
counters, not engines: what must be measured is measured through the protocols of
``core`` by `draftproof.planner.calibrate`.
"""
