"""GPT-2 and its loss; knows no rank and no engine."""
