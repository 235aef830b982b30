"""``python -m draftproof``: the same as the ``draftproof`` command."""

from draftproof.cli import main

if __name__ == "__main__":
    main()
