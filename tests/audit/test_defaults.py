"""The dated table of changed defaults: what applies to which release, engine and step."""

import pytest

from toolkit.audit.defaults import changes_that_apply


def report(package: str, version: str, engine: str, **more: object) -> dict[str, object]:
    return {"versions": {package: version}, "engine": engine, **more}


@pytest.mark.parametrize(
    ("package", "first", "last", "engine"),
    [
        ("accelerate", "1.10.1", "1.11.0", "FSDP2"),
        ("deepspeed", "0.18.10", "0.18.11", "DeepSpeed stage 1"),
        ("deepspeed", "0.18.2", "0.18.3", "DeepSpeed stage 2"),
    ],
)
def test_a_release_with_a_fault_is_named_and_the_next_is_not(
    package: str, first: str, last: str, engine: str
) -> None:
    (text,) = changes_that_apply(report(package, first, engine), accumulates=True)
    assert text.startswith(f"{package} {first}: ")
    assert changes_that_apply(report(package, last, engine), accumulates=True) == []
    assert changes_that_apply(report(package, first, engine), accumulates=False) == []
    assert changes_that_apply(report(package, first, "plain"), accumulates=True) == []


@pytest.mark.parametrize(
    ("asks", "value", "count"), [(False, 1.0, 1), (True, 1.0, 0), (False, 0, 0)]
)
def test_clipping_by_default_is_named(asks: bool, value: float, count: int) -> None:
    settings = {"gradient_clipping": value, "asks_for_clipping": asks}
    found = report("deepspeed", "0.19.8", "DeepSpeed stage 2", deepspeed=settings)
    assert len(changes_that_apply(found, accumulates=True)) == count
