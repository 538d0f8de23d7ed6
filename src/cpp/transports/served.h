// A wire that other code serves, for a library that can start to receive and wait for the end, but not ask
// whether it has come (torch.distributed's Gloo). What comes is framed, so that its end can be seen in
// memory; only then is waited for, and nobody is ever stuck in such a wait.
#pragma once
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "transports/wire.h"

namespace gpucomm {

class ServedWire : public Wire {
 public:
  struct Line {  // of messages from or to one peer, in order
    int peer = 0, stream = 0;
    auto operator<=>(const Line&) const = default;
  };
  // What there is to do. A line that has something to send wants a thread, which takes next_send(); a
  // receive is to be started into a frame of so many bytes; one that has come is to be waited for; one whose
  // message nobody wants is to be started too, for who sends it.
  struct Event {
    enum class Kind { line, receive, come, drop } kind;
    Line line;
    Request request = 0;
    size_t frame_bytes = 0;
  };
  struct Frame {
    Request request = 0;
    bool matched = false;  // its end is waited for; the others before it on its line have left by then too
    bool last = false;     // nothing, and nothing follows: the ends of all before it are waited for
    std::string bytes;
  };

  Request send(Peer peer, int stream, const std::byte* data, size_t bytes, bool matched) override;
  Request receive(Peer peer, int stream, std::byte* data, size_t most) override;
  bool done(Request request) override;
  bool cancel(Request request) override;

  void leave(Peer peer, int stream, size_t most, int count) override;

  // For who serves it. The two that wait return nothing once the wire is closed and nothing is left to do;
  // next_send also where its line has been idle for a while: the next message on it asks for a thread again.
  std::optional<Event> next_event();
  std::optional<Frame> next_send(const Line& line);
  void prepare(std::byte* frame) const;             // before a receive into it is started
  void started(Request request, std::byte* frame);  // which stays until finish_receive
  void finish_receive(Request request);
  void finish_send(Request request);
  void fail_line(const Line& line, const std::string& why);
  void close();

 private:
  struct Pending {
    Line line;
    int rank = 0;               // of the peer
    std::byte* data = nullptr;  // of a receive
    size_t most = 0;
    uint64_t number = 0;  // of the message on its line, from 1
    std::byte* frame = nullptr;
    bool come = false;
  };
  bool complete(const Pending& receive) const;
  void push(const Line& line, Frame frame);

  std::mutex mutex_;  // guards all below
  std::condition_variable news_;
  std::deque<Event> events_;
  std::map<Line, std::deque<Frame>> sends_;
  std::set<Line> served_;                     // have a thread
  std::map<Line, uint64_t> sent_, received_;  // how many so far
  std::map<Line, std::string> failures_;
  std::map<Request, Pending> pending_;
  Request next_ = 1;
  bool closed_ = false;
};

}  // namespace gpucomm
