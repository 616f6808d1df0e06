from benchmarks.bucket_cap import RESULT, load_curves, page, payloads
from toolkit.engines.deepspeed_config import LARGEST_BUCKET
from toolkit.model.sizes import ModelSizes


def test_the_published_page_is_what_the_formulas_say() -> None:
    assert RESULT.read_text() == page()


def test_every_gradient_is_reduced_once_in_payloads_that_fit() -> None:
    sizes = ModelSizes(40, 40, 5120, 50_304, 1024)
    found = list(payloads(sizes))
    assert sum(found) == sizes.parameter_count
    embedding = 50_304 * 5120
    assert [size for size in found if size > LARGEST_BUCKET] == [embedding]


def test_a_small_payload_takes_longer_by_the_byte() -> None:
    for curve in load_curves():
        whole = curve.seconds(2**33)
        assert whole < 8 * curve.seconds(2**30) < 16 * curve.seconds(2**29)
        mib, bandwidth = curve.points[1]
        share = 2 * (curve.ranks - 1) / curve.ranks
        assert curve.seconds(int(mib * 2**20)) == share * mib * 2**20 / (bandwidth * 1e9)
