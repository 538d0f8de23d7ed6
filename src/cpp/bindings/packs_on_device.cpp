// Several arrays of a device in one message: the device itself puts them together, in scratch of the
// communicator's, and takes them apart again.
#include <deque>
#include <utility>

#include "base/aligned.h"
#include "bindings/collectives.h"
#include "bindings/names.h"
#include "engine/staging.h"

namespace py = pybind11;

namespace gpucomm {
namespace {

std::vector<Staging::Copy> copies(const std::deque<Array>& arrays) {
  std::vector<Staging::Copy> all;
  size_t at = 0;
  for (const Array& array : arrays)
    all.push_back({array.data(), std::exchange(at, at + array.bytes()), array.bytes()});
  return all;
}

void hold(const std::deque<Array>& arrays, Lent& lent) {
  for (const Array& array : arrays)
    if (array.hold()) lent.holds.push_back(array.hold());
}

// Each of `outs` has a part of every rank; what was gathered has all of a rank side by side.
void take_apart(Staging& staging, const std::deque<Array>& outs, int world) {
  const size_t bytes = staging.bytes;
  staging.output = round_up(bytes, kDeviceAlign);
  staging.bytes = *staging.output + world * bytes;
  for (int rank = 0; rank < world; ++rank)
    for (size_t i = 0; i < outs.size(); ++i) {
      const auto& [array, offset, part] = staging.in[i];
      staging.out.push_back({outs[i].data() + rank * part, *staging.output + rank * bytes + offset, part});
    }
}

}  // namespace

py::object PyCommunicator::packed_on_device(Collective collective, const py::list& xs,
                                            std::optional<py::list> outs, Text op, int root, Factor scale,
                                            const Options& options) {
  check_root(root);
  std::deque<Array> arrays;
  for (const py::handle x : xs) arrays.emplace_back(x, "x", true);
  const bool is_root = core_->rank() == root, gathers = collective == Collective::all_gather;
  const bool reads = collective != Collective::broadcast || is_root;
  const bool gets = collective == Collective::reduce ? is_root : !gathers;
  Shape call = shape(collective, arrays[0], options);
  if (reduces(collective)) call.op = parse_op(op), call.dtype = folded_as(call.dtype);
  call.root = root, call.in_place = gets;
  Staging staging{arrays[0].dtype()};
  staging.in = copies(arrays), staging.input = 0, staging.factor = scale;
  staging.bytes = staging.in.back().offset + staging.in.back().bytes;
  call.count = staging.bytes / size_of(staging.dtype);
  if (gets) staging.output = 0;
  if (gathers && !outs) {
    outs.emplace();
    for (size_t i = 0; i < arrays.size(); ++i)
      outs->append(allocate(xs[i], arrays[i], rows_of(arrays[i]) * core_->world(), options.stream));
  }
  const py::list result = outs.value_or(xs);
  std::deque<Array> apart;
  if (outs)
    for (const py::handle out : *outs) apart.emplace_back(out, "out", true);
  const std::deque<Array>& targets = outs ? apart : arrays;
  if (gets && (collective != Collective::broadcast || !is_root || outs)) staging.out = copies(targets);
  if (gathers) {
    take_apart(staging, targets, core_->world());
    call.count *= core_->world();
  }
  if (!reads) staging.in.clear();
  Arrays staged;
  staged.staging = std::make_shared<Staging>(std::move(staging));
  Lent lent{xs, result};
  if (options.async_op) {
    hold(arrays, lent);
    hold(targets, lent);
  }
  return issue_on_device(call, staged, arrays[0], lent, options, timeout(options.timeout_s));
}

}  // namespace gpucomm
