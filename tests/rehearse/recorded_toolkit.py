"""The `toolkit` command, with `recorded_job.py` in the place of its main job."""

from pathlib import Path
from unittest.mock import patch

from toolkit import cli, shipped

if __name__ == "__main__":
    job = Path(__file__).with_name("recorded_job.py")
    with patch.object(shipped, "find_main_job", lambda: job):
        cli.main()
