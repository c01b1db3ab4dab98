"""A limited rate: what is transferred in which time, on a clock that the tests set."""

from __future__ import annotations

from threading import Lock, Thread

import pytest

from blob_doubles import MemoryBlobs
from treesnap.remote.blobs.base import NEAR_BYTES
from treesnap.remote.blobs.wrappers import BURST_S, SystemClock, Throttled, TokenBucket


class SetClock:
    """A clock that goes on only while a thread sleeps; threads sleep one after the other."""

    def __init__(self) -> None:
        self.time_s = 100.0
        self.slept: list[float] = []
        self._lock = Lock()

    def now_s(self) -> float:
        return self.time_s

    def sleep(self, duration_s: float) -> None:
        with self._lock:
            self.slept.append(duration_s)
            self.time_s += duration_s


class StandingClock(SetClock):
    """A clock that stands still, so that all wait from the same moment."""

    def sleep(self, duration_s: float) -> None:
        self.slept.append(duration_s)


@pytest.fixture
def clock():
    return SetClock()


def throttled(clock, rate=100):
    memory = MemoryBlobs()
    return Throttled(memory, rate, clock), memory


def test_what_fits_into_a_burst_does_not_wait(clock):
    blobs, memory = throttled(clock)

    blobs.put("packs/00", bytes(int(100 * BURST_S)))

    assert clock.slept == []
    assert len(memory.content) == 1


def test_the_rate_holds_over_many_blobs(clock):
    blobs, _ = throttled(clock)

    for number in range(50):
        blobs.put(f"packs/{number:02x}", bytes(70))

    assert clock.time_s - 100.0 == pytest.approx(50 * 70 / 100 - BURST_S)


def test_a_blob_larger_than_a_burst_waits_for_its_size_before_it_is_sent(clock):
    blobs, memory = throttled(clock)
    seen = []
    memory.put = lambda name, data: seen.append(clock.time_s)

    blobs.put("packs/00", bytes(1000))

    assert seen == [pytest.approx(100.0 + 1000 / 100 - BURST_S)]


def test_what_is_not_used_is_not_kept(clock):
    blobs, _ = throttled(clock)
    clock.time_s += 3600

    blobs.put("packs/00", bytes(int(100 * BURST_S)))
    blobs.put("packs/01", bytes(100))

    assert clock.slept == [pytest.approx(1.0)]


def test_reading_and_writing_share_the_rate(clock):
    blobs, memory = throttled(clock)
    memory.content["packs/00"] = bytes(300)

    blobs.get("packs/00")
    assert clock.slept == []
    blobs.create("packs/01", bytes(100))
    blobs.get_ranges("packs/00", [(0, 100)])

    assert clock.slept == [pytest.approx(3.0), pytest.approx(1.0)]


def test_after_a_blob_was_read_the_next_reader_waits(clock):
    blobs, memory = throttled(clock)
    memory.content["packs/00"] = bytes(500)

    blobs.get("packs/00")
    blobs.get("packs/00")

    assert clock.slept == [pytest.approx(5.0 - BURST_S)]


def test_gaps_between_near_ranges_are_counted(clock):
    blobs, memory = throttled(clock, NEAR_BYTES)
    memory.content["packs/00"] = bytes(3 * NEAR_BYTES)

    blobs.get_ranges("packs/00", [(0, 1), (NEAR_BYTES, 1), (3 * NEAR_BYTES - 1, 1)])

    assert clock.slept == [pytest.approx((NEAR_BYTES + 2) / NEAR_BYTES - BURST_S)]


def test_names_cost_nothing(clock):
    blobs, memory = throttled(clock)
    memory.content["packs/00"] = bytes(500)
    blobs.get("packs/00")

    assert blobs.size_bytes("packs/00") == 500
    assert [item.name for item in blobs.list("packs/")] == ["packs/00"]
    assert blobs.delete(["packs/00"]) == []
    assert clock.slept == []


def test_threads_share_one_bucket():
    clock = StandingClock()
    blobs, _ = throttled(clock)
    threads = [
        Thread(target=blobs.put, args=(f"packs/{number}", bytes(100))) for number in range(5)
    ]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(clock.slept) == pytest.approx([1.0, 2.0, 3.0, 4.0])


@pytest.mark.parametrize("rate", [0, -1, float("nan")])
def test_a_rate_that_cannot_be_is_refused(clock, rate):
    with pytest.raises(ValueError, match="is not possible"):
        TokenBucket(rate, clock)


def test_the_clock_of_the_machine_goes_on():
    clock = SystemClock()
    before = clock.now_s()

    clock.sleep(1e-6)

    assert clock.now_s() > before
