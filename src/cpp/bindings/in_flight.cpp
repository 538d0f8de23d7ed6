#include "bindings/in_flight.h"

#include <vector>

#include "bindings/array.h"

namespace py = pybind11;

namespace gpucomm {
namespace {

struct Span {
  const std::byte *begin = nullptr, *end = nullptr;
  bool overlaps(const Span& other) const { return begin < other.end && other.begin < end; }
};

struct Flight {
  std::shared_ptr<Pending> call;
  const char* name;
  Span read, written;
};

std::vector<Flight>& flights() {
  static std::vector<Flight> flights;
  return flights;
}

Span span_of(py::handle object) {
  if (!object || object.is_none()) return {};
  const Array array(object, "x", true);
  return array.on_host() && array.bytes() ? Span{array.data(), array.data() + array.bytes()} : Span{};
}

}  // namespace

void check_apart(py::handle read, py::handle written) {
  std::erase_if(flights(), [](const Flight& f) { return f.call->done.load(std::memory_order_acquire); });
  if (flights().empty()) return;
  const Span in = span_of(read), out = span_of(written);
  for (const Flight& f : flights())
    if (f.written.overlaps(in) || f.written.overlaps(out) || f.read.overlaps(out))
      fail(ErrorKind::invalid_argument, "the array overlaps one of an asynchronous ", f.name,
           " that is still under way: wait() for that first");
}

void now_in_flight(std::shared_ptr<Pending> call, const char* name, py::handle read, py::handle written) {
  const Span in = span_of(read), out = span_of(written);
  if (in.begin || out.begin) flights().push_back({std::move(call), name, in, out});
}

}  // namespace gpucomm
