import pytest

from toolkit.config import load_run_config
from toolkit.errors import UsageError


@pytest.fixture
def load(tmp_path):
    """Write a file named demo.yaml and load it."""

    def write_and_load(text="", *overrides):
        path = tmp_path / "demo.yaml"
        path.write_text(text)
        return load_run_config(path, overrides)

    return write_and_load


@pytest.fixture
def problems(load):
    """The lines of the error that a file gives, without the folder it is in."""

    def lines(text="", *overrides):
        with pytest.raises(UsageError) as caught:
            load(text, *overrides)
        return [line[line.find("demo.yaml") :] for line in str(caught.value).split("\n")]

    return lines
