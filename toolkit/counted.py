"""Numbers with their nouns, for sentences."""


def counted(number: int, noun: str, many: str | None = None) -> str:
    """Return such as "1 rank" and "2,048 ranks"; `many` is the plural where it is no plain -s."""
    return f"{number:,} {noun if number == 1 else many or noun + 's'}"
