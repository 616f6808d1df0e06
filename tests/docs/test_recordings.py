"""The recordings that docs/watch.md embeds are those that `toolkit watch` would make today."""

import json

from docs.scripts.recordings import FOLDER, lesson_cases


def test_the_lesson_has_the_cases_of_the_command() -> None:
    recordings = json.loads((FOLDER / "lesson.json").read_text())["recordings"]
    assert [recording["case"] for recording in recordings] == [
        json.loads(json.dumps(case.to_json())) for case in lesson_cases()
    ]


def test_the_run_has_two_steps_of_two_ranks() -> None:
    run = json.loads((FOLDER / "run.json").read_text())["run"]
    assert [len(step["ranks"]) for step in run["steps"]] == [2, 2]
