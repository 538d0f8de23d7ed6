// Work of the host device's streams that is captured, to run again and again, by CUDA's rules: a stream joins
// a capture when it waits for an event of it, all work must lead back to the stream that began, and nothing
// may wait for what is outside.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "devices/device.h"

namespace gpucomm {

class HostGraph {
 public:
  using Job = std::function<void()>;
  using Places = std::vector<size_t>;  // of nodes

  size_t add(Job job, Places after);
  // Whether all nodes come before these.
  bool leads_to(const Places& ends) const;
  // All jobs, each after those that it comes after, else in an order drawn anew: a wait that is missing
  // shows.
  void run();

 private:
  struct Node {
    Job job;
    Places after;
  };
  std::vector<Node> nodes_;
  std::minstd_rand order_{std::random_device{}()};
};

// The captures of a device. What is refused fails the capture, which then only ends, without a graph.
class HostCaptures {
 public:
  struct State {
    uint64_t id = 0;  // 0: none
    bool failed = false;
  };
  // Throws unavailable, as all here, for what CUDA refuses.
  void begin(Stream stream);
  std::shared_ptr<HostGraph> end(Stream stream);  // by the thread that began
  State of(Stream stream) const;
  bool fail_all();  // that are going on; false: there is none

  // True: the stream is being captured, and the work with it.
  bool add(Stream stream, const HostGraph::Job& job);
  bool record(Event event, Stream stream);
  bool wait(Stream stream, Event event);
  // Of an event that the host looks at.
  void check(Event event);
  void forget(void* handle);  // of a stream or event that ends

 private:
  struct Capture {
    uint64_t id;
    Stream origin;
    std::shared_ptr<HostGraph> graph;
    std::thread::id thread = std::this_thread::get_id();
    bool ended = false, failed = false;
  };
  // What comes next on a stream, or behind an event, comes after these.
  struct Point {
    std::shared_ptr<Capture> capture;
    HostGraph::Places after;
  };

  // That of a stream; null: none. Throws where it has failed.
  Point* going_on(Stream stream);
  void join(Point& waiting, const Point& recorded);

  mutable std::mutex mutex_;  // guards all below
  uint64_t captures_ = 0;
  std::map<Stream, Point> streams_;
  std::map<Event, Point> events_;
};

}  // namespace gpucomm
