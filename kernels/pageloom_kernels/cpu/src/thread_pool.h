// How is the work of one step shared by the cores? One pool of pinned threads; the calling thread is its thread 0.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

namespace pageloom {

// One thread at a time may use a pool. Workers sleep between steps: `run` is fast inside a ThreadPool::Step only.
class ThreadPool {
 public:
  // `cpus` names one CPU for each thread to be pinned to; nullptr pins none.
  ThreadPool(int num_threads, const int* cpus);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return num_threads_; }

  // Calls fn(item, thread) once for each item of [0, num_items), and returns when all calls have returned.
  // `thread` is in [0, num_threads()) and names the caller's scratch. Each thread starts at its own share of the
  // items, always the same one and in ascending order, and then helps the others: so which thread gets an item
  // must not decide what is computed.
  template <class Function>
  void run(int num_items, Function&& fn) {
    using Plain = std::remove_reference_t<Function>;
    const Work work = [](void* context, int item, int thread) { (*static_cast<Plain*>(context))(item, thread); };
    run_erased(num_items, work, const_cast<void*>(static_cast<const void*>(&fn)));
  }

  // While one exists, workers wait for the next run() awake (for a bounded time), and the calling thread is pinned.
  class Step {
   public:
    explicit Step(ThreadPool& pool);
    ~Step();
    Step(const Step&) = delete;
    Step& operator=(const Step&) = delete;

   private:
    ThreadPool& pool_;
    struct Affinity;
    std::unique_ptr<Affinity> caller_;
  };

 private:
  using Work = void (*)(void* context, int item, int thread);

  // A thread's share of the job. The high half of `next` is the job's generation, so that a thread that is late
  // for a job that the others have finished finds nothing to claim, and nobody has to wait for it.
  struct alignas(64) Share {
    std::atomic<uint64_t> next{0};
    std::atomic<uint32_t> end{0};
  };

  void run_erased(int num_items, Work work, void* context);
  void publish(int num_items, Work work, void* context);
  void take_part(uint32_t generation, int thread);
  bool claim(Share& share, uint32_t generation, int* item);
  void serve(int thread);
  void stop();
  uint32_t await_generation(uint32_t seen);
  void await_completion();

  const int num_threads_;
  std::vector<int> cpus_;
  std::vector<Share> shares_;

  // The job; written between two jobs, read by a thread that has claimed an item of it.
  Work work_ = nullptr;
  void* context_ = nullptr;
  uint32_t num_items_ = 0;

  alignas(64) std::atomic<uint32_t> generation_{0};
  alignas(64) std::atomic<uint32_t> num_done_{0};
  std::atomic<uint32_t> caller_sleeps_{0};
  alignas(64) std::atomic<uint32_t> num_sleeping_{0};
  std::atomic<bool> in_step_{false};
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> workers_;
};

}  // namespace pageloom
