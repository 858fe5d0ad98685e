// Who makes memory resident before a step waits for it? A thread that fills in pages ahead of what is used.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

namespace pageloom {

// Zeroed regions of equal size, one after the other, that are used from the start of each upwards (the layers of a KV
// cache). The first touch of a page costs more than all the arithmetic for the token in it where a virtual machine
// gets its own memory only then.
class MemoryAhead {
 public:
  // Keeps `ahead_bytes` of each region resident beyond what is used.
  MemoryAhead(char* start, int64_t num_regions, int64_t region_bytes, int64_t ahead_bytes);
  ~MemoryAhead();
  MemoryAhead(const MemoryAhead&) = delete;
  MemoryAhead& operator=(const MemoryAhead&) = delete;

  // So much of each region is in use. Never waits for pages.
  void used(int64_t region_bytes);

  // How much of each region is known to be resident.
  int64_t resident();

 private:
  void serve();
  bool populate(int64_t first, int64_t end);

  char* const start_;
  const int64_t num_regions_, region_bytes_, ahead_bytes_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t wanted_, resident_ = 0;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace pageloom
