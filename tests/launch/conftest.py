import pytest
import yaml

from tests.launch.shipped import SHIPPED, change
from toolkit.errors import UsageError
from toolkit.launch.file import load_launch_file


@pytest.fixture
def load(tmp_path):
    """Load a shipped launch file with some keys changed."""

    def write_and_load(strategy, **changes):
        settings = yaml.safe_load((SHIPPED / f"{strategy}.yaml").read_text())
        path = tmp_path / "launch.yaml"
        path.write_text(yaml.safe_dump(change(settings, **changes)))
        return load_launch_file(path)

    return write_and_load


@pytest.fixture
def problems(load):
    def lines(strategy, **changes):
        with pytest.raises(UsageError) as caught:
            load(strategy, **changes)
        texts = str(caught.value).split("\n")
        assert all("launch.yaml: " in text for text in texts)
        return [text.partition("launch.yaml: ")[2] for text in texts]

    return lines
