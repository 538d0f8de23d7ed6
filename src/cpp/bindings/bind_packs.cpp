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

// The places of arrays that hold anything, by where these begin.
std::vector<size_t> by_address(const std::deque<Array>& arrays) {
  std::vector<size_t> order;
  for (size_t i = 0; i < arrays.size(); ++i)
    if (arrays[i].bytes()) order.push_back(i);
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return arrays[a].data() < arrays[b].data(); });
  return order;
}

// `order`: by_address(arrays).
void check_apart(const std::deque<Array>& arrays, const std::vector<size_t>& order, const char* name) {
  for (size_t k = 1; k < order.size(); ++k)
    if (arrays[order[k - 1]].overlaps(arrays[order[k]]))
      fail(ErrorKind::invalid_argument, "the arrays of a list must be apart, ", name, "[",
           std::min(order[k - 1], order[k]), "] and ", name, "[", std::max(order[k - 1], order[k]),
           "] overlap");
}

// Messages may go in any order, so none may write what another reads. `order`: by_address(outs), which are
// apart.
void check_read_apart(const std::deque<Array>& xs, const std::deque<Array>& outs,
                      const std::vector<size_t>& order) {
  for (size_t i = 0; i < xs.size(); ++i) {
    if (!xs[i].bytes()) continue;
    auto at = std::partition_point(order.begin(), order.end(), [&](size_t k) {
      return outs[k].data() + outs[k].bytes() <= xs[i].data();
    });
    for (; at != order.end() && outs[*at].overlaps(xs[i]); ++at)
      if (*at != i)
        fail(ErrorKind::invalid_argument, "out[", *at, "] overlaps x[", i,
             "]: the result of an array may lie over none but that array itself");
  }
}

// No two results overlap, nor one of them what another message reads.
void check_written(const std::deque<Array>& xs, const std::deque<Array>& to, const char* name) {
  const std::vector<size_t> order = by_address(to);
  check_apart(to, order, name);
  if (&to != &xs) check_read_apart(xs, to, order);
}

// What one message holds is of one dtype and lies in one memory.
using PackKind = std::tuple<Dtype, int, int>;
PackKind kind_of(const Array& array) {
  if (array.on_host()) return {array.dtype(), 0, 0};
  return {array.dtype(), array.place().type, array.place().id};
}

std::vector<Pack> plan(const std::deque<Array>& arrays) {
  std::vector<Pack> packs;
  std::map<PackKind, size_t> open;  // the pack that takes more of a kind
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

constexpr const char* kByThemselves = ": pass the arrays by themselves, with out=";

void require_room(const std::deque<Array>& arrays, const Array& whole) {
  size_t bytes = 0;
  for (const Array& array : arrays) bytes += array.bytes();
  GPUCOMM_CHECK(bytes <= whole.bytes());
}

// Copies the arrays into the pack, one behind the other, or out of it again.
void copy_pack(const py::list& xs, const py::object& pack, bool into) {
  const std::deque<Array> arrays = borrow(xs, "x", false);
  const Array whole(pack, "pack");
  if (into) check_writable(whole, "a pack, a new array like x[0],", kByThemselves);
  require_room(arrays, whole);
  const Released released;
  std::byte* at = whole.data();
  for (const Array& array : arrays) {
    if (array.bytes()) copy_bytes(into ? at : array.data(), into ? array.data() : at, array.bytes());
    at += array.bytes();
  }
}

// Of each rank all parts lie one behind the other; each array gets its part of every rank.
void copy_gathered(const py::list& outs, const py::object& gathered, int world) {
  const std::deque<Array> arrays = borrow(outs, "out", false);
  const Array whole(gathered, "gathered");
  require_room(arrays, whole);
  const Released released;
  const std::byte* at = whole.data();
  for (int rank = 0; rank < world; ++rank)
    for (const Array& array : arrays) {
      const size_t part = array.bytes() / world;
      if (part) copy_bytes(array.data() + rank * part, at, part);
      at += part;
    }
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
      if (writes) check_writable(to[i], concat(written, "[", i, "]").c_str());
    }
    if (writes) check_written(arrays, to, written);
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
      [](uintptr_t address, size_t bytes) {
        check_settled(reinterpret_cast<const std::byte*>(address), bytes);
      },
      "address"_a, "bytes"_a, "Fails where an asynchronous call that is under way writes there.");
  m.def("copy_pack", &copy_pack, "xs"_a, "pack"_a, "into"_a,
        "Copies arrays into a pack, one behind the other, or out of it again.");
  m.def("copy_gathered", &copy_gathered, "outs"_a, "gathered"_a, "world"_a,
        "Copies what packs of all ranks held to arrays with a part of every rank.");
  m.def(
      "check_writable",
      [](const py::list& arrays) {
        for (const Array& array : borrow(arrays, "out"))
          check_writable(array, "a new array like x", kByThemselves);
      },
      "arrays"_a, "Fails where a new array cannot be written.");
}

}  // namespace gpucomm
