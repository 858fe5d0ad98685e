#include "thread_pool.h"

#include <immintrin.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>

namespace pageloom {
namespace {

// A pause takes 10 to 40 ns. Long enough for the stretches of a step that one thread does alone; short enough that
// a core which another process needs is soon given up.
constexpr int kSpins = 2000;

void futex_wait(std::atomic<uint32_t>& word, uint32_t expected) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr, 0);
}

void futex_wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

cpu_set_t only(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  return set;
}

}  // namespace

ThreadPool::ThreadPool(int num_threads, const int* cpus) : num_threads_(num_threads), shares_(num_threads) {
  if (cpus != nullptr) cpus_.assign(cpus, cpus + num_threads);
  workers_.reserve(num_threads - 1);
  try {
    for (int thread = 1; thread < num_threads; ++thread) {
      workers_.emplace_back([this, thread] { serve(thread); });
    }
  } catch (...) {
    stop();
    throw;
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  stopping_.store(true);
  generation_.fetch_add(1);
  futex_wake_all(generation_);
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run_erased(int num_items, Work work, void* context) {
  if (num_threads_ == 1 || num_items <= 1) {
    for (int item = 0; item < num_items; ++item) work(context, item, 0);
    return;
  }
  publish(num_items, work, context);
  take_part(generation_.load(std::memory_order_relaxed), 0);
  await_completion();
}

void ThreadPool::publish(int num_items, Work work, void* context) {
  work_ = work;
  context_ = context;
  num_items_ = static_cast<uint32_t>(num_items);
  num_done_.store(0, std::memory_order_relaxed);
  const uint32_t generation = generation_.load(std::memory_order_relaxed) + 1;
  for (int thread = 0; thread < num_threads_; ++thread) {
    const auto bound = [&](int t) { return static_cast<uint32_t>(int64_t{num_items} * t / num_threads_); };
    // In this order: a thread that is late for the job before and reads the new end finds `next` changed.
    shares_[thread].next.store(uint64_t{generation} << 32 | bound(thread), std::memory_order_relaxed);
    shares_[thread].end.store(bound(thread + 1), std::memory_order_release);
  }
  // Sequentially consistent with await_generation: either it sees the new generation or we see it asleep.
  generation_.store(generation);
  if (num_sleeping_.load() > 0) futex_wake_all(generation_);
}

void ThreadPool::take_part(uint32_t generation, int thread) {
  uint32_t num_done = 0;
  for (int i = 0; i < num_threads_; ++i) {
    Share& share = shares_[(thread + i) % num_threads_];
    for (int item; claim(share, generation, &item); ++num_done) work_(context_, item, thread);
  }
  if (num_done == 0) return;
  // Once the last item is counted the caller may return and the pool may start its next job: touch no job after it.
  const uint32_t num_items = num_items_;
  if (num_done_.fetch_add(num_done) + num_done == num_items && caller_sleeps_.load() != 0) {
    futex_wake_all(num_done_);
  }
}

// The job's fields may be read after a claim that succeeded: the job cannot end before the item is counted.
bool ThreadPool::claim(Share& share, uint32_t generation, int* item) {
  uint64_t next = share.next.load(std::memory_order_acquire);
  while (next >> 32 == generation) {
    const auto index = static_cast<uint32_t>(next);
    if (index >= share.end.load(std::memory_order_acquire)) return false;
    if (share.next.compare_exchange_weak(next, next + 1, std::memory_order_acq_rel, std::memory_order_acquire)) {
      *item = static_cast<int>(index);
      return true;
    }
  }
  return false;
}

void ThreadPool::serve(int thread) {
  pthread_setname_np(pthread_self(), "pageloom-cpu");
  if (!cpus_.empty()) {
    const cpu_set_t set = only(cpus_[thread]);
    // Refused where the container's CPUs have changed since: the thread then runs anywhere.
    pthread_setaffinity_np(pthread_self(), sizeof set, &set);
  }
  uint32_t seen = 0;
  while (true) {
    seen = await_generation(seen);
    if (stopping_.load()) return;
    take_part(seen, thread);
  }
}

uint32_t ThreadPool::await_generation(uint32_t seen) {
  while (true) {
    for (int spin = 0; spin < kSpins && in_step_.load(std::memory_order_relaxed); ++spin) {
      const uint32_t now = generation_.load(std::memory_order_acquire);
      if (now != seen) return now;
      _mm_pause();
    }
    num_sleeping_.fetch_add(1);
    if (generation_.load() == seen) futex_wait(generation_, seen);
    num_sleeping_.fetch_sub(1);
    const uint32_t now = generation_.load(std::memory_order_acquire);
    if (now != seen) return now;
  }
}

void ThreadPool::await_completion() {
  for (int spin = 0; spin < kSpins; ++spin) {
    if (num_done_.load(std::memory_order_acquire) == num_items_) return;
    _mm_pause();
  }
  caller_sleeps_.store(1);
  for (uint32_t done = num_done_.load(); done != num_items_; done = num_done_.load()) futex_wait(num_done_, done);
  caller_sleeps_.store(0);
}

struct ThreadPool::Step::Affinity {
  cpu_set_t before;
};

// The caller's own affinity comes back afterwards: between steps its thread may run wherever it could before.
ThreadPool::Step::Step(ThreadPool& pool) : pool_(pool) {
  pool_.in_step_.store(true);
  if (pool_.num_sleeping_.load() > 0) futex_wake_all(pool_.generation_);
  if (pool_.cpus_.empty()) return;
  auto affinity = std::make_unique<Affinity>();
  const cpu_set_t set = only(pool_.cpus_[0]);
  if (pthread_getaffinity_np(pthread_self(), sizeof affinity->before, &affinity->before) == 0 &&
      pthread_setaffinity_np(pthread_self(), sizeof set, &set) == 0) {
    caller_ = std::move(affinity);
  }
}

ThreadPool::Step::~Step() {
  pool_.in_step_.store(false);
  if (caller_) pthread_setaffinity_np(pthread_self(), sizeof caller_->before, &caller_->before);
}

}  // namespace pageloom
