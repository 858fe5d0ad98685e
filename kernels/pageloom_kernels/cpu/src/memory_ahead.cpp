#include "memory_ahead.h"

#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>

#include <algorithm>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14
#endif

namespace pageloom {
namespace {

// What is filled in at once: a huge page of each region.
constexpr int64_t kPieceBytes = int64_t{2} << 20;
constexpr int64_t kPageBytes = 4096;

}  // namespace

MemoryAhead::MemoryAhead(char* start, int64_t num_regions, int64_t region_bytes, int64_t ahead_bytes)
    : start_(start),
      num_regions_(num_regions),
      region_bytes_(region_bytes),
      ahead_bytes_(ahead_bytes),
      wanted_(std::min(ahead_bytes, region_bytes)),
      thread_([this] { serve(); }) {}

MemoryAhead::~MemoryAhead() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void MemoryAhead::used(int64_t region_bytes) {
  const std::lock_guard lock(mutex_);
  const int64_t wanted = std::min(region_bytes + ahead_bytes_, region_bytes_);
  // Waking the thread costs a system call, so not for every block.
  const bool is_all = wanted == region_bytes_ && wanted > wanted_;
  if (wanted - wanted_ < kPieceBytes && !is_all) return;
  wanted_ = wanted;
  changed_.notify_one();
}

int64_t MemoryAhead::resident() {
  const std::lock_guard lock(mutex_);
  return resident_;
}

void MemoryAhead::serve() {
  pthread_setname_np(pthread_self(), "pageloom-memory");
  // It takes the time that nothing else wants. A refusal makes it a thread like others.
  const sched_param none{};
  sched_setscheduler(0, SCHED_IDLE, &none);
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || resident_ < wanted_; });
    if (stopping_) return;
    const int64_t first = resident_, end = std::min(first + kPieceBytes, wanted_);
    lock.unlock();
    const bool done = populate(first, end);
    lock.lock();
    // An older kernel, or no memory: pages come when they are touched, as without this thread.
    if (!done) return;
    resident_ = end;
  }
}

bool MemoryAhead::populate(int64_t first, int64_t end) {
  const auto down = [](char* p) { return p - reinterpret_cast<uintptr_t>(p) % kPageBytes; };
  for (int64_t region = 0; region < num_regions_; ++region) {
    char* const memory = start_ + region * region_bytes_;
    char* const from = down(memory + first);
    if (madvise(from, down(memory + end) - from, MADV_POPULATE_WRITE) != 0) return false;
  }
  return true;
}

}  // namespace pageloom
