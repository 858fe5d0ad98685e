#include "memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <new>
#include <utility>

namespace pageloom {
namespace {

constexpr size_t kCacheLineBytes = 64;
constexpr size_t kHugePageBytes = size_t{2} << 20;
// Of an arena. Only what is used of the last chunk becomes resident.
constexpr size_t kChunkBytes = size_t{64} << 20;

size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

void* map(size_t num_bytes) {
  void* start = mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED) throw std::bad_alloc();
  return start;
}

// The kernel gives huge pages to aligned stretches only, so what sticks out on both sides goes back.
void* map_aligned(size_t num_bytes) {
  char* start = static_cast<char*>(map(num_bytes + kHugePageBytes));
  char* aligned = reinterpret_cast<char*>(round_up(reinterpret_cast<uintptr_t>(start), kHugePageBytes));
  const auto before = static_cast<size_t>(aligned - start);
  if (before > 0) munmap(start, before);
  munmap(aligned + num_bytes, kHugePageBytes - before);
  madvise(aligned, num_bytes, MADV_HUGEPAGE);
  return aligned;
}

}  // namespace

Buffer::Buffer(size_t num_bytes) {
  if (num_bytes == 0) return;
  const bool large = num_bytes >= kHugePageBytes;
  num_bytes_ = round_up(num_bytes, size_t{4} << 10);
  start_ = large ? map_aligned(num_bytes_) : map(num_bytes_);
}

Buffer::~Buffer() {
  if (start_ != nullptr) munmap(start_, num_bytes_);
}

Buffer::Buffer(Buffer&& other) noexcept
    : start_(std::exchange(other.start_, nullptr)), num_bytes_(std::exchange(other.num_bytes_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(start_, other.start_);
  std::swap(num_bytes_, other.num_bytes_);
  return *this;
}

void Buffer::reserve(size_t num_bytes) {
  if (num_bytes <= num_bytes_) return;
  *this = Buffer();
  *this = Buffer(num_bytes);
}

void* Arena::allocate(size_t num_bytes) {
  num_bytes = round_up(num_bytes, kCacheLineBytes);
  if (chunks_.empty() || used_in_last_ + num_bytes > chunks_.back().num_bytes()) {
    chunks_.emplace_back(std::max(num_bytes, kChunkBytes));
    used_in_last_ = 0;
  }
  void* start = chunks_.back().as<char>() + used_in_last_;
  used_in_last_ += num_bytes;
  num_bytes_ += num_bytes;
  return start;
}

}  // namespace pageloom
