"""`python -m toolkit`, for where the program `toolkit` is not on the path."""

from toolkit.cli import main

main()
