"""The loop and what it calls; knows no engine by name."""
