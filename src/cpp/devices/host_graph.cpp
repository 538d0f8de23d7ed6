#include "devices/host_graph.h"

#include <algorithm>

#include "base/error.h"

namespace gpucomm {

size_t HostGraph::add(Job job, Places after) {
  nodes_.push_back({std::move(job), std::move(after)});
  return nodes_.size() - 1;
}

bool HostGraph::leads_to(const Places& ends) const {
  std::vector<bool> before(nodes_.size());
  for (const size_t end : ends) before[end] = true;
  for (size_t n = nodes_.size(); n-- > 0;)  // what a node comes after was there before it
    if (before[n])
      for (const size_t earlier : nodes_[n].after) before[earlier] = true;
  return std::all_of(before.begin(), before.end(), [](bool b) { return b; });
}

void HostGraph::run() {
  std::vector<size_t> missing(nodes_.size());
  std::vector<Places> next(nodes_.size());
  Places ready;
  for (size_t n = 0; n < nodes_.size(); ++n) {
    missing[n] = nodes_[n].after.size();
    for (const size_t earlier : nodes_[n].after) next[earlier].push_back(n);
    if (!missing[n]) ready.push_back(n);
  }
  while (!ready.empty()) {
    std::swap(ready[order_() % ready.size()], ready.back());
    const size_t node = ready.back();
    ready.pop_back();
    nodes_[node].job();
    for (const size_t later : next[node])
      if (!--missing[later]) ready.push_back(later);
  }
}

void HostCaptures::begin(Stream stream) {
  std::lock_guard lock(mutex_);
  if (!stream) fail(ErrorKind::unavailable, "the default stream cannot be captured");
  if (streams_.contains(stream)) fail(ErrorKind::unavailable, "the stream is being captured already");
  streams_[stream] = {std::make_shared<Capture>(Capture{++captures_, stream, std::make_shared<HostGraph>()}),
                      {}};
}

std::shared_ptr<HostGraph> HostCaptures::end(Stream stream) {
  std::lock_guard lock(mutex_);
  const auto found = streams_.find(stream);
  if (found == streams_.end() || found->second.capture->origin != stream)
    fail(ErrorKind::unavailable, "no capture has begun on this stream");
  const Point last = found->second;
  if (last.capture->thread != std::this_thread::get_id())
    fail(ErrorKind::unavailable, "another thread has begun the capture: it must end it");
  last.capture->ended = true;
  std::erase_if(streams_, [&](const auto& each) { return each.second.capture == last.capture; });
  if (last.capture->failed) fail(ErrorKind::unavailable, "the capture has failed");
  if (!last.capture->graph->leads_to(last.after))
    fail(ErrorKind::unavailable, "work of the capture does not lead back to the stream that began it");
  return last.capture->graph;
}

HostCaptures::State HostCaptures::of(Stream stream) const {
  std::lock_guard lock(mutex_);
  const auto found = streams_.find(stream);
  if (found == streams_.end()) return {};
  return {found->second.capture->id, found->second.capture->failed};
}

bool HostCaptures::fail_all() {
  std::lock_guard lock(mutex_);
  for (const auto& [stream, point] : streams_) point.capture->failed = true;
  return !streams_.empty();
}

HostCaptures::Point* HostCaptures::going_on(Stream stream) {
  const auto found = streams_.find(stream);
  if (found == streams_.end()) return nullptr;
  if (found->second.capture->failed) fail(ErrorKind::unavailable, "the capture has failed");
  return &found->second;
}

bool HostCaptures::add(Stream stream, const HostGraph::Job& job) {
  std::lock_guard lock(mutex_);
  Point* const point = going_on(stream);
  if (point) point->after = {point->capture->graph->add(job, point->after)};
  return point;
}

bool HostCaptures::record(Event event, Stream stream) {
  std::lock_guard lock(mutex_);
  const Point* const point = going_on(stream);
  events_.erase(event);
  if (point) events_[event] = *point;
  return point;
}

bool HostCaptures::wait(Stream stream, Event event) {
  std::lock_guard lock(mutex_);
  const auto recorded = events_.find(event);
  Point* const waiting = going_on(stream);
  if (recorded == events_.end()) {
    if (!waiting) return false;
    waiting->capture->failed = true;
    fail(ErrorKind::unavailable, "work that is being captured cannot wait for what is not");
  }
  const Point& point = recorded->second;
  if (waiting)
    join(*waiting, point);
  else if (point.capture->ended || point.capture->failed)
    fail(ErrorKind::unavailable, "the event is one of a capture that has ",
         point.capture->ended ? "ended" : "failed");
  else
    streams_[stream] = point;
  return true;
}

void HostCaptures::join(Point& waiting, const Point& recorded) {
  if (waiting.capture != recorded.capture) {
    waiting.capture->failed = recorded.capture->failed = true;
    fail(ErrorKind::unavailable, "two captures cannot be merged");
  }
  for (const size_t node : recorded.after)
    if (auto& after = waiting.after; std::find(after.begin(), after.end(), node) == after.end())
      after.push_back(node);
}

void HostCaptures::check(Event event) {
  std::lock_guard lock(mutex_);
  const auto found = events_.find(event);
  if (found == events_.end()) return;
  found->second.capture->failed = true;
  fail(ErrorKind::unavailable, "the event was recorded in a capture");
}

void HostCaptures::forget(void* handle) {
  std::lock_guard lock(mutex_);
  events_.erase(handle), streams_.erase(handle);
}

}  // namespace gpucomm
