"""One file a verb of `toolkit`: its arguments and what is printed."""
