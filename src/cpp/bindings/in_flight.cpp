#include "bindings/in_flight.h"

#include <array>
#include <vector>

namespace py = pybind11;

namespace gpucomm {
namespace {

struct Span {
  const std::byte *begin = nullptr, *end = nullptr;
  bool overlaps(const Span& other) const { return begin < other.end && other.begin < end; }
};

struct Flight {
  std::shared_ptr<const std::atomic<bool>> done;
  const char* name;
  Span read;
  std::array<Span, 2> written;
};

std::vector<Flight>& flights() {
  static std::vector<Flight> flights;
  return flights;
}

Span span_of(const Array* array) {
  if (!array || !array->on_host() || !array->bytes()) return {};
  return {array->data(), array->data() + array->bytes()};
}

void check(const Span& written, const Span& error, const Span& read) {
  std::erase_if(flights(), [](const Flight& f) { return f.done->load(std::memory_order_acquire); });
  if (flights().empty()) return;
  const std::array<Span, 3> spans{written, error, read};
  for (const Flight& f : flights()) {
    for (const Span& span : spans) {
      const bool writes = &span != &spans.back();
      if (f.written[0].overlaps(span) || f.written[1].overlaps(span) || (writes && f.read.overlaps(span)))
        fail(ErrorKind::invalid_argument, "the array overlaps one of an asynchronous ", f.name,
             " that is still under way: wait() for that first");
    }
  }
}

}  // namespace

void check_settled(const std::byte* begin, size_t bytes) { check({}, {}, {begin, begin + bytes}); }

void check_apart(const Array* read, const Array* written, const Array* error) {
  check(span_of(written), span_of(error), span_of(read));
}

void now_in_flight(const std::shared_ptr<Pending>& call, const char* name, const Array* read,
                   const Array* written, const Array* error) {
  const Flight flight{{call, &call->done}, name, span_of(read), {span_of(written), span_of(error)}};
  if (flight.read.begin || flight.written[0].begin || flight.written[1].begin) flights().push_back(flight);
}

Awaiting::Awaiting(const py::list& arrays) {
  std::vector<Span> spans;  // all, before any counts: a library may refuse the last of them
  for (const py::handle object : arrays) {
    const Array array(object, "x", true);
    spans.push_back(span_of(&array));
  }
  for (const Span& span : spans) flights().push_back({done_, "collective on a list", {}, {span, Span{}}});
}

}  // namespace gpucomm
