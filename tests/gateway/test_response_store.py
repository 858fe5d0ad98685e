"""What the store of responses forgets, and when."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from gateway.errors import NotFound
from gateway.responses.schemas import InputItem
from gateway.responses.shared_store import SharedResponseStore
from gateway.responses.store import ResponseStore
from pageloom.errors import Overloaded


def response(number: int, status: str = "completed", text: str = "") -> dict[str, object]:
    return {"id": f"resp_{number}", "status": status, "output": [], "text": text}


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def make(**limits) -> tuple[ResponseStore, Clock]:
    clock = Clock()
    return ResponseStore(**{"max_responses": 100, "max_bytes": 1 << 20, "ttl_s": 60.0, **limits}, clock=clock), clock


def test_the_oldest_go_first():
    store, _ = make(max_responses=3)
    for number in range(5):
        store.add(response(number), [])
    assert len(store) == 3
    with pytest.raises(NotFound):
        store.get("resp_1")
    assert store.get("resp_2").id == "resp_2"


def test_bytes_are_bounded():
    store, _ = make(max_bytes=10_000)
    for number in range(50):
        store.add(response(number, text="x" * 900), [InputItem(role="user", content="y" * 900)])
        assert store.num_bytes <= 10_000
    assert 0 < len(store) < 10


def test_what_is_too_old_is_gone():
    store, clock = make()
    store.add(response(1), [])
    clock.now_s = 59.0
    store.get("resp_1")
    clock.now_s = 61.0
    with pytest.raises(NotFound):
        store.get("resp_1")


def test_one_that_runs_is_kept_and_counted_when_it_has_ended():
    store, _ = make(max_responses=1)
    running = store.add(response(1, "in_progress"), [])
    store.add(response(2), [])
    assert store.get("resp_1") is running
    running.append(b"event: a\ndata: {}\n\nevent: b\ndata: {}\n\n")
    running.end(response(1))
    store.count(running)
    assert len(store) <= 1


def test_no_more_run_in_the_background_than_can_be_stored():
    store, _ = make(max_responses=2)
    store.add(response(1, "in_progress"), [])
    ended = store.add(response(2, "queued"), [])
    with pytest.raises(Overloaded, match="2 responses run in the background"):
        store.require_room()
    ended.end(response(2))
    store.require_room()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make_shared(tmp_path: Path, clock: Clock):
    def make_one(**limits) -> SharedResponseStore:
        given = {"max_responses": 100, "max_bytes": 1 << 20, "ttl_s": 60.0, **limits}
        return SharedResponseStore(tmp_path / "responses.sqlite", **given, clock=clock)

    return make_one


def kept(store: SharedResponseStore, numbers: range) -> list[int]:
    found = []
    for number in numbers:
        with suppress(NotFound):
            found.append(int(str(store.get(f"resp_{number}").response["id"]).removeprefix("resp_")))
    return found


def test_one_file_is_one_store(make_shared):
    one, other = make_shared(), make_shared()
    one.add(response(1), [InputItem(role="user", content="Hi")])
    found = other.get("resp_1")
    assert found.response == response(1)
    assert found.conversation == (InputItem(role="user", content="Hi"),)
    assert found.ended
    other.remove("resp_1")
    with pytest.raises(NotFound):
        one.get("resp_1")


def test_the_shared_store_has_the_same_bounds(make_shared, clock: Clock):
    store = make_shared(max_responses=3)
    for number in range(5):
        store.add(response(number), [])
    assert kept(store, range(5)) == [2, 3, 4]
    clock.now_s = 61.0
    assert kept(store, range(5)) == []
    small = make_shared(max_bytes=2500)
    for number in range(5, 9):
        small.add(response(number, text="x" * 1000), [])
    assert kept(small, range(9)) == [7, 8]
    small.add(response(9, text="x" * 3000), [])
    assert kept(small, range(10)) == []


def test_what_cannot_be_stored_is_not_the_answers_fault(make_shared, tmp_path: Path):
    store = make_shared()
    (tmp_path / "responses.sqlite").write_bytes(b"no database at all")
    store.add(response(1), [])
