"""The prefix cache: fixed hashes, verified hits, what is published and when, what is evicted first."""

import random

import pytest

from scheduler_svc.core import prefix_cache
from scheduler_svc.core.admission import MAX_LOOKAHEAD, MAX_PREFIX_WAITS
from scheduler_svc.core.prefix_cache import CacheNamespace, HashChain, PrefixCache, chained_hash, token_array
from tests.scheduler.core.builders import make_limits, make_request, make_world
from tests.scheduler.core.histories import run_history
from tests.scheduler.core.paper_world import PaperWorld

PLAIN = CacheNamespace(salt="", model_digest="0" * 64, kv_dtype="bfloat16")
SALTED = CacheNamespace(salt="tenant-7", model_digest="0" * 64, kv_dtype="bfloat16", adapter="lora-a")


def tokens(*token_ids: int) -> bytes:
    return token_array(token_ids).tobytes()


def num_cached(world: PaperWorld, request_id: str) -> int:
    return world.finished(request_id).num_cached_tokens


class TestHash:
    """These values are a format: other processes and versions must find the same blocks under them."""

    def test_namespaces(self):
        assert PLAIN.root_hash().hex() == "40975c97e5ed75d4427ecee71e7fc11b0fad4cd8d924b2d57aa0ae51a02c2648"
        assert SALTED.root_hash().hex() == "e86864def30e909ee34da905cffce4545015d71d781447190865f6e5833fce4b"

    def test_chain(self):
        first = chained_hash(PLAIN.root_hash(), tokens(*range(16)))
        assert first.hex() == "ac7752f7cc3e159f1c1bbfd55f3aed1b8eacbfeea793c204bd44d29dcad78ac9"
        second = chained_hash(first, tokens(*range(16)))
        assert second.hex() == "3aae3bee00a656cfe46fab49c98db2d543e2085f6fa019ce1aeb3dc7a916f232"

    def test_tokens_are_whole_uint32(self):
        hashed = chained_hash(SALTED.root_hash(), tokens(0, 1, 2**31, 2**32 - 1))
        assert hashed.hex() == "9d1335f13a05c25d0c1735b7889b6a7c39254dae751b116b8c1a8f2c08b4d6f5"

    def test_fields_do_not_run_into_each_other(self):
        one = CacheNamespace(salt="ab", model_digest="c", kv_dtype="d")
        other = CacheNamespace(salt="a", model_digest="bc", kv_dtype="d")
        assert one.root_hash() != other.root_hash()

    def test_a_chain_extended_in_pieces_is_the_chain_extended_at_once(self):
        token_ids = token_array(random.Random(0).randrange(1000) for _ in range(40))
        pieces, whole = HashChain(PLAIN, 4), HashChain(PLAIN, 4)
        for num_blocks in (1, 1, 4, 10):
            pieces.extend(token_ids, num_blocks)
        whole.extend(token_ids, 10)
        assert pieces.hashes == whole.hashes


class TestVerification:
    @pytest.mark.parametrize("num_bytes", [0, 1], ids=["constant", "one byte"])
    def test_text_is_right_even_if_hashes_collide(self, monkeypatch: pytest.MonkeyPatch, num_bytes: int):
        """A hit is believed for its tokens, never for its hash."""
        monkeypatch.setattr(prefix_cache, "chained_hash", lambda parent, block: chained_hash(parent, block)[:num_bytes])
        for seed in range(60):
            run_history(seed)

    def test_equal_tokens_after_another_prefix_are_no_hit(self):
        cache, one, other = PrefixCache(), HashChain(PLAIN, 2), HashChain(PLAIN, 2)
        one.hashes, other.hashes = [b"x", b"y"], [b"z", b"y"]
        first = cache.publish(0, b"x", PLAIN, tokens(1, 1))
        cache.publish(1, b"y", first, tokens(5, 5))
        cache.publish(2, b"z", PLAIN, tokens(2, 2))
        assert [hit.block_id for hit in cache.match(one, token_array([1, 1, 5, 5]), 2)] == [0, 1]
        assert [hit.block_id for hit in cache.match(other, token_array([2, 2, 5, 5]), 2)] == [2]

    def test_a_block_is_found_again_after_its_parent_was_evicted_and_published_anew(self):
        cache, chain = PrefixCache(), HashChain(PLAIN, 2)
        chain.extend(token_array([1, 2, 3, 4]), 2)
        first = cache.publish(0, chain.hashes[0], PLAIN, tokens(1, 2))
        cache.publish(1, chain.hashes[1], first, tokens(3, 4))
        cache.forget(0)
        assert cache.match(chain, token_array([1, 2, 3, 4]), 2) == []
        cache.publish(7, chain.hashes[0], PLAIN, tokens(1, 2))
        assert [hit.block_id for hit in cache.match(chain, token_array([1, 2, 3, 4]), 2)] == [7, 1]

    def test_of_two_blocks_with_one_content_the_first_is_cached(self):
        cache, chain = PrefixCache(), HashChain(PLAIN, 2)
        chain.extend(token_array([1, 2]), 1)
        first = cache.publish(0, chain.hashes[0], PLAIN, tokens(1, 2))
        assert cache.publish(1, chain.hashes[0], PLAIN, tokens(1, 2)) is first
        assert 1 not in cache


class TestHits:
    def test_the_second_request_reuses_the_prompt_of_the_first(self):
        world = make_world()
        world.submit(make_request("one", prompt=tuple(range(2, 34))))
        world.drain()
        world.submit(make_request("two", prompt=(*range(2, 34), 35, 36)))
        world.drain()
        assert num_cached(world, "one") == 0
        assert num_cached(world, "two") == 32

    def test_one_token_always_runs(self):
        world = make_world(block_size=4)
        for request_id in ("one", "two"):
            world.submit(make_request(request_id, prompt=tuple(range(2, 10))))
            world.drain()
        assert num_cached(world, "two") == 4

    def test_generated_tokens_are_cached_too(self):
        world = make_world(block_size=4)
        world.submit(make_request("one", prompt=5, max_tokens=12))
        world.drain()
        conversation = (*make_request("one", prompt=5).prompt_token_ids, *world.streams["one", 0].token_ids)
        world.submit(make_request("two", prompt=conversation))
        world.drain()
        assert num_cached(world, "two") == 16

    def test_salts_do_not_meet(self):
        world = make_world()
        for request_id, salt in (("one", "a"), ("two", "b"), ("three", "a")):
            world.submit(make_request(request_id, prompt=tuple(range(2, 34)), cache_salt=salt))
            world.drain()
        assert [num_cached(world, request_id) for request_id in ("one", "two", "three")] == [0, 0, 28]

    def test_switched_off(self):
        world = make_world(make_limits(enable_prefix_caching=False))
        for request_id in ("one", "two"):
            world.submit(make_request(request_id, prompt=tuple(range(2, 34))))
            world.drain()
        assert num_cached(world, "two") == 0
        stats = world.scheduler.stats()
        assert stats.prefix_cache_queried_tokens == 0
        assert stats.workers[0].num_cached_blocks == 0

    def test_a_hit_shares_the_block_with_whoever_still_uses_it(self):
        world = make_world(block_size=4, num_blocks=16)
        world.submit(make_request("one", prompt=tuple(range(2, 34)), max_tokens=20))
        world.plan("a")
        world.commit("a")
        world.submit(make_request("two", prompt=(*range(2, 34), 35)))
        world.plan("a")
        one, two = world.workers["a"].worker.slots.values()
        assert one.block_ids[:8] == two.block_ids[:8]
        world.commit("a")
        world.drain()


class TestPublishing:
    def test_only_after_the_write_was_acknowledged(self):
        world = make_world()
        world.submit(make_request("one", prompt=32))
        world.plan("a")
        assert world.scheduler.stats().workers[0].num_cached_blocks == 0
        world.commit("a")
        assert world.scheduler.stats().workers[0].num_cached_blocks == 8

    def test_nothing_of_a_lost_step_is_found(self):
        world = make_world()
        hello = world.workers["a"].hello
        world.submit(make_request("one", prompt=32))
        world.plan("a")
        world.lose("a")
        world.attach(hello)
        plan = world.plan("a")
        assert plan is not None
        assert [admission.num_computed_tokens for admission in plan.admissions] == [0]
        world.commit("a")
        world.drain()

    def test_nothing_of_a_failed_choice_is_found(self):
        world = make_world()
        world.submit(make_request("one", prompt=tuple(range(2, 34))))
        world.plan("a")
        world.commit("a")
        world.plan("a", failing_slots=[0])
        world.commit("a")
        assert world.scheduler.stats().workers[0].num_cached_blocks == 0
        world.submit(make_request("two", prompt=tuple(range(2, 34))))
        world.drain()
        assert num_cached(world, "two") == 0

    def test_nothing_of_the_step_after_a_failed_one_is_found_either(self):
        world = make_world(make_limits(max_num_batched_tokens=4, max_num_steps_in_flight=2), block_size=4)
        prompt = tuple(range(2, 14))
        world.submit(make_request("one", prompt=prompt))
        world.plan("a", failing_slots=[0])
        world.plan("a")
        world.commit("a")
        world.commit("a")
        assert world.scheduler.stats().workers[0].num_cached_blocks == 0
        world.submit(make_request("two", prompt=prompt))
        world.drain()
        assert num_cached(world, "two") == 0


class TestPromises:
    def test_who_would_compute_the_same_waits_for_it_instead(self):
        world = make_world(block_size=4)
        for request_id, last in (("one", 34), ("two", 35)):
            world.submit(make_request(request_id, prompt=(*range(2, 34), last)))
        assert world.admitted(world.step()) == ["one"]
        assert world.admitted(world.step()) == ["two"]
        world.drain()
        assert num_cached(world, "two") == 32

    def test_nobody_waits_for_a_block_whose_last_token_it_has_to_run(self):
        world = make_world(block_size=4)
        for request_id in ("one", "two"):
            world.submit(make_request(request_id, prompt=(2, 3, 4, 5)))
        assert world.admitted(world.step()) == ["one", "two"]
        world.drain()

    def test_who_waits_for_a_prefix_holds_nobody_up(self):
        world = make_world(block_size=4)
        for index in range(MAX_LOOKAHEAD + 2):
            world.submit(make_request(f"same{index}", prompt=(*range(2, 10), index), max_tokens=1))
        world.submit(make_request("other", prompt=30))
        assert world.admitted(world.step()) == ["same0", "other"]
        world.drain()

    def test_of_those_one_plan_looks_at_no_more_than_so_many(self):
        world = make_world(make_limits(max_num_queued_seqs=MAX_PREFIX_WAITS + 2))
        for index in range(MAX_PREFIX_WAITS + 1):
            world.submit(make_request(f"same{index}", prompt=(*range(2, 10), 35), max_tokens=1))
        world.submit(make_request("other", prompt=30))
        assert world.admitted(world.step()) == ["same0"]


class TestEviction:
    def test_the_tail_of_a_prefix_goes_before_its_head(self):
        world = make_world(block_size=4, num_blocks=8)
        prompt = tuple(range(2, 30))
        world.submit(make_request("one", prompt=prompt, max_tokens=1))
        world.drain()
        # Two blocks for it; one was never used.
        world.submit(make_request("other", prompt=7, max_tokens=1))
        world.drain()
        world.submit(make_request("two", prompt=prompt, max_tokens=1))
        world.drain()
        assert num_cached(world, "two") == 24

    def test_the_prefix_used_last_stays(self):
        world = make_world(block_size=4, num_blocks=8)
        old, recent = tuple(range(2, 14)), tuple(range(20, 32))
        for request_id, prompt in (("1", old), ("2", recent), ("3", old), ("4", recent)):
            world.submit(make_request(request_id, prompt=(*prompt, 39), max_tokens=1))
            world.drain()
        world.submit(make_request("5", prompt=16, max_tokens=1))
        world.drain()
        world.submit(make_request("6", prompt=(*recent, 39), max_tokens=1))
        world.drain()
        assert num_cached(world, "6") == 12
