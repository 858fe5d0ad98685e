// Where do large arrays live? In aligned memory, on huge pages where the system gives them.
#pragma once

#include <cstddef>
#include <vector>

namespace pageloom {

// Memory that is zero at first and resident only where it was touched. Reads of weights and activations run
// through far more 4 KiB pages than a TLB holds, so huge ones are asked for.
class Buffer {
 public:
  Buffer() = default;
  // Throws std::bad_alloc.
  explicit Buffer(size_t num_bytes);
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;

  size_t num_bytes() const { return num_bytes_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(start_);
  }
  // Makes room for at least `num_bytes`; what the buffer held is lost.
  void reserve(size_t num_bytes);

 private:
  void* start_ = nullptr;
  size_t num_bytes_ = 0;
};

// Memory for many arrays that are freed together. Most matrices of a small model are smaller than a huge page.
class Arena {
 public:
  // Aligned to a cache line. Throws std::bad_alloc.
  void* allocate(size_t num_bytes);
  size_t num_bytes() const { return num_bytes_; }

 private:
  std::vector<Buffer> chunks_;
  size_t used_in_last_ = 0;
  size_t num_bytes_ = 0;
};

}  // namespace pageloom
