"""The page of all keys of a run configuration, from `toolkit.config.reference`."""

from toolkit.config.reference import Key, reference, sections

_INTRODUCTION = """\
# Configuration

A run is one YAML file, such as [configs/train/gpt2.yaml](../configs/train/gpt2.yaml). Every key has
a default, so a file names only what differs. `section.key=value` on the command line replaces a
value of the file:

```sh
toolkit check configs/train/gpt2.yaml
toolkit estimate --config configs/train/gpt2.yaml batch.micro_batch_size=8 precision=fp32
```

An unknown key, a wrong type or values that contradict each other are refused before anything
starts, in one sentence that names the key. Where and how the run is started is a second file, the
launch file: see [Launching](launching.md).

The tables below are generated from the definitions that check a file.
"""


def page() -> str:
    """Return docs/configuration.md."""
    keys = reference()
    parts = [_INTRODUCTION, "## Top level\n", _table([key for key in keys if "." not in key.name])]
    for name, about in sections().items():
        of_section = [key for key in keys if key.name.startswith(f"{name}.")]
        parts += [f"## `{name}`\n", f"{about}\n", _table(of_section)]
    return "\n".join(parts)


def _table(keys: list[Key]) -> str:
    rows = [
        f"| `{key.name}` | {key.type} | `{key.default}` | {key.meaning} |".replace("  ", " ")
        for key in keys
    ]
    head = ["| key | values | default | meaning |", "| --- | --- | --- | --- |"]
    return "\n".join([*head, *rows, ""])
