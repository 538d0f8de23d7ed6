#include "engine/in_parts.h"

#include <algorithm>

#include "base/aligned.h"
#include "base/hash.h"
#include "engine/staging.h"

namespace gpucomm {
namespace {

// What a part multiplies; the errors that it tells take as much again.
constexpr size_t kPartBytes = 8 << 20;
constexpr size_t kGrain = 1024;  // elements: more than a codec's block

std::vector<size_t> chunks_of(const Shape& call, int world) {
  if (!call.counts.empty()) return call.counts;
  if (!scatters(call.collective)) return {call.count};
  return std::vector<size_t>(world, call.count / world);
}

// Of every chunk as many elements, from `begin` on.
class Cutter {
 public:
  Cutter(const Shape& call, const Arrays& arrays, std::vector<size_t> chunks)
      : call_(call),
        arrays_(arrays),
        chunks_(std::move(chunks)),
        longest_(*std::max_element(chunks_.begin(), chunks_.end())),
        each_(std::max(kGrain, kPartBytes / size_of(call.dtype) / chunks_.size() / kGrain * kGrain)) {}

  std::vector<PartCall> parts() const {
    std::vector<PartCall> parts;
    size_t begin = 0;
    do parts.push_back({shape(begin), arrays(begin)});
    while ((begin += each_) < longest_);
    return parts;
  }

 private:
  size_t count(size_t chunk, size_t begin) const { return std::min(each_, chunk - std::min(begin, chunk)); }

  Shape shape(size_t begin) const {
    Shape part = call_;
    if (longest_ <= each_) return part;
    part.part_of = call_.count, part.count = 0;
    for (size_t i = 0; i < chunks_.size(); ++i) {
      const size_t n = count(chunks_[i], begin);
      part.count += n;
      if (!call_.counts.empty()) part.counts[i] = n, part.pack = mix(part.pack, chunks_[i]);
    }
    return part;
  }

  Arrays arrays(size_t begin) const {
    const size_t at = begin * size_of(call_.dtype);
    Arrays part = arrays_;
    if (part.output) part.output += at;
    if (multiplies_apart(call_, arrays_)) return staged(std::move(part), begin);
    part.input += at;
    return part;
  }

  Arrays staged(Arrays part, size_t begin) const {
    const size_t item = size_of(call_.dtype);
    Staging staging{call_.dtype};
    staging.factor = part.factor, staging.input = 0;
    size_t chunk_begin = 0;
    for (const size_t chunk : chunks_) {
      const size_t from = (chunk_begin + std::min(begin, chunk)) * item, bytes = count(chunk, begin) * item;
      staging.in.push_back({const_cast<std::byte*>(part.input) + from, staging.bytes, bytes});
      if (part.error) staging.out.push_back({part.error + from, staging.bytes, bytes});
      staging.bytes += bytes, chunk_begin += chunk;
    }
    if (part.error) stage_errors(staging);
    part.factor.reset();
    part.staging = std::make_shared<Staging>(std::move(staging));
    return part;
  }

  static void stage_errors(Staging& staging) {
    staging.error = staging.bytes = round_up(staging.bytes, 64);
    for (Staging::Copy& copy : staging.out) copy.offset += *staging.error, staging.bytes += copy.bytes;
  }

  const Shape& call_;
  const Arrays& arrays_;
  std::vector<size_t> chunks_;
  size_t longest_, each_;
};

}  // namespace

std::vector<PartCall> in_parts(const Shape& call, const Arrays& arrays, int world) {
  return Cutter(call, arrays, chunks_of(call, world)).parts();
}

}  // namespace gpucomm
