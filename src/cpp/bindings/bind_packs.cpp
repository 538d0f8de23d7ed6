// Several arrays in one message: how they are packed, and the copies in and out.
#include <pybind11/stl.h>

#include <algorithm>
#include <deque>
#include <map>
#include <tuple>

#include "base/copy.h"
#include "bindings/bind.h"
#include "bindings/collectives.h"
#include "bindings/in_flight.h"
#include "bindings/interpreter.h"

namespace py = pybind11;
using namespace py::literals;

namespace gpucomm {
namespace {

// What is copied twice to save a message must be small beside what a message costs; memory stays bounded.
constexpr size_t kMostPackBytes = 4 << 20, kMostPackedBytes = 1 << 20;

struct Pack {
  std::vector<size_t> places;
  size_t count = 0;
  uint64_t digest = 0xcbf29ce484222325;  // FNV-1a of the arrays' counts
  void add(size_t place, size_t n) {
    places.push_back(place), count += n;
    for (int byte = 0; byte < 8; ++byte) digest = (digest ^ (n >> 8 * byte & 255)) * 0x100000001b3;
  }
};

std::deque<Array> borrow(const py::list& xs, const char* name, bool anywhere = true) {
  std::deque<Array> arrays;
  for (size_t i = 0; i < xs.size(); ++i)
    arrays.emplace_back(xs[i], concat(name, "[", i, "]").c_str(), anywhere);
  return arrays;
}

void check_apart(const std::deque<Array>& arrays, const char* name) {
  std::vector<size_t> order;
  for (size_t i = 0; i < arrays.size(); ++i)
    if (arrays[i].bytes()) order.push_back(i);
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return arrays[a].data() < arrays[b].data(); });
  for (size_t k = 1; k < order.size(); ++k)
    if (arrays[order[k - 1]].overlaps(arrays[order[k]]))
      fail(ErrorKind::invalid_argument, "the arrays of a list must be apart, ", name, "[",
           std::min(order[k - 1], order[k]), "] and ", name, "[", std::max(order[k - 1], order[k]),
           "] overlap");
}

// What one message holds is of one dtype and lies in one memory.
using Kind = std::tuple<Dtype, int, int>;
Kind kind_of(const Array& array) {
  if (array.on_host()) return {array.dtype(), 0, 0};
  return {array.dtype(), array.place().type, array.place().id};
}

std::vector<Pack> plan(const std::deque<Array>& arrays) {
  std::vector<Pack> packs;
  std::map<Kind, size_t> open;  // the pack that takes more of a kind
  for (size_t i = 0; i < arrays.size(); ++i) {
    const Array& array = arrays[i];
    auto found = open.find(kind_of(array));
    const size_t room =
        found == open.end() ? 0 : kMostPackBytes - packs[found->second].count * size_of(array.dtype());
    const bool alone = array.bytes() > kMostPackedBytes;
    if (alone || found == open.end() || array.bytes() > room) {
      packs.emplace_back();
      if (!alone) open[kind_of(array)] = packs.size() - 1;
    }
    packs[alone ? packs.size() - 1 : open[kind_of(array)]].add(i, array.count());
  }
  return packs;
}

// Copies the arrays into the pack, one behind the other, or out of it again.
void copy_pack(const py::list& xs, const py::object& pack, bool into) {
  const std::deque<Array> arrays = borrow(xs, "x", false);
  const Array whole(pack, "pack");
  const Released released;
  std::byte* at = whole.data();
  for (const Array& array : arrays) {
    if (array.bytes()) copy_bytes(into ? at : array.data(), into ? array.data() : at, array.bytes());
    at += array.bytes();
  }
  GPUCOMM_CHECK(at <= whole.data() + whole.bytes());
}

}  // namespace

void PyCommunicator::check_outs(const std::deque<Array>& xs, const std::deque<Array>& outs, int parts) const {
  if (outs.size() != xs.size())
    fail(ErrorKind::invalid_argument, "out must hold an array for each of the ", xs.size(), " of x, got ",
         outs.size());
  for (size_t i = 0; i < xs.size(); ++i)
    check_out(xs[i], outs[i], xs[i].count() * parts, xs[i].data(), xs[i].bytes());
}

py::list PyCommunicator::plan_packs(const py::list& xs, const std::optional<py::list>& outs, int parts,
                                    bool reads, bool writes, const std::optional<Text>& op,
                                    Factor scale) const {
  return located([&] {
    const std::deque<Array> arrays = borrow(xs, "x"),
                            apart = outs ? borrow(*outs, "out") : std::deque<Array>();
    const std::deque<Array>& to = outs ? apart : arrays;
    if (outs) check_outs(arrays, to, parts);
    const char* const written = outs ? "out" : "x";
    for (size_t i = 0; i < arrays.size(); ++i) {
      gpucomm::check_apart(reads ? &arrays[i] : nullptr, writes ? &to[i] : nullptr);
      if (op) reducing(arrays[i], *op, scale);
      if (writes) check_writable(to[i], concat(written, "[", i, "]").c_str(), "");
    }
    if (writes) check_apart(to, written);
    py::list rows;
    for (const Pack& pack : plan(arrays))
      rows.append(py::make_tuple(pack.places, pack.count, pack.digest, !arrays[pack.places[0]].on_host()));
    return rows;
  });
}

void bind_packs(py::module_& m) {
  py::class_<Awaiting>(m, "Awaiting", "Arrays that the result of a call under way will be copied into.")
      .def(py::init<const py::list&>(), "arrays"_a)
      .def("release", &Awaiting::release, "They are there, or never will be.");
  m.def(
      "check_settled",
      [](py::handle x) {
        const Array array(x, "x");
        gpucomm::check_apart(&array, nullptr);
      },
      "x"_a,
      "Fails where an asynchronous call that is under way writes x.");
  m.def("copy_pack", &copy_pack, "xs"_a, "pack"_a, "into"_a,
        "Copies arrays into a pack, one behind the other, or out of it again.");
}

}  // namespace gpucomm
