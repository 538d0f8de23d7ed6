#include "engine/device_largest.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/aligned.h"
#include "codecs/floats.h"
#include "reduce/scale.h"

namespace gpucomm {
namespace {

constexpr size_t kFew = 4096;      // elements that the host reads by itself
constexpr size_t kPartGrain = 64;  // parts are multiples of it, for kernels like aligned packs

// Of a fold of so many elements: they overlap where that is no multiple.
size_t part_of(size_t count) { return round_up((count + kMaxSources - 1) / kMaxSources, kPartGrain); }

// What the folds leave of a span.
size_t left_of(size_t count) {
  while (count > kFew) count = part_of(count);
  return count;
}

// Room for all folds of a span, one behind the other.
size_t room_of(size_t count) {
  size_t room = 0;
  while (count > kFew) room += count = part_of(count);
  return room;
}

// The folds of spans share their room; what is left of each, by both folds, is kept.
size_t room_of(const std::vector<DeviceLargest::Span>& spans) {
  size_t room = 0;
  for (const auto& span : spans) room = std::max(room, room_of(span.count));
  return room;
}
size_t left_of(const std::vector<DeviceLargest::Span>& spans) {
  size_t left = 0;
  for (const auto& span : spans) left += 2 * left_of(span.count);
  return left;
}

}  // namespace

DeviceLargest::DeviceLargest(Spare& spare, std::shared_ptr<Device> device, Dtype dtype,
                             const std::vector<Span>& spans, Stream stream)
    : device_(std::move(device)),
      dtype_(dtype),
      memory_(spare, device_, room_of(spans) * size_of(dtype), left_of(spans) * size_of(dtype)) {
  const size_t item = size_of(dtype);
  std::byte* at = memory_.here();
  for (const Span& span : spans)
    for (const Op op : {Op::max, Op::min}) {
      if (op == Op::min && span.count <= kFew) continue;  // all of it is there
      const Span rest = narrow(op, span, stream);
      if (!rest.count) continue;
      device_->copy(at, rest.data, rest.count * item, stream);
      ends_.push_back({at, rest.count});
      at += rest.count * item;
    }
  finished_ = make_event(device_);
  device_->record(finished_.get(), stream);
}

DeviceLargest::Span DeviceLargest::narrow(Op op, Span span, Stream stream) const {
  std::byte* at = memory_.there();
  while (span.count > kFew) {
    const size_t part = part_of(span.count);
    Fold fold{dtype_, op, 1, {at}, {}, part};
    for (size_t i = 0; i < kMaxSources; ++i)
      fold.sources.push_back(span.data + std::min(i * part, span.count - part) * size_of(dtype_));
    device_->reduce(fold, stream);
    span = {at, part};
    at += part * size_of(dtype_);
  }
  return span;
}

double DeviceLargest::value(double factor) {
  memory_.done();
  double most = 0;
  for (const Span& end : ends_) {
    std::vector<std::byte> scaled(end.data, end.data + end.count * size_of(dtype_));
    if (factor != 1) scale(dtype_, scaled.data(), scaled.data(), end.count, factor);
    const double here = max_abs(dtype_, scaled.data(), end.count);
    if (std::isnan(here) || here > most) most = here;
  }
  return most;
}

}  // namespace gpucomm
