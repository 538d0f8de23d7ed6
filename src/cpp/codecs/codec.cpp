#include "codecs/codec.h"

#include "base/copy.h"

namespace gpucomm {

void Codec::decode_onto(const std::byte* in, size_t bytes, const std::byte* own, size_t count, Dtype dtype,
                        std::byte* out) const {
  if (count) copy_bytes(out, own, count * size_of(dtype));
  decode_add(in, bytes, count, dtype, out);
}

bool Codec::decode_add_encode(const std::byte*, size_t, const std::byte*, size_t, Dtype, std::byte*,
                              Losses) const {
  return false;
}

void Codec::add(const std::byte*, size_t, std::byte*) const {
  fail(ErrorKind::invalid_argument, "codec ", spec(),
       " is not additive: what it coded must be decoded to be added");
}

std::shared_ptr<const Codec> Codec::agreed(double, int) const {
  fail(ErrorKind::invalid_argument, "codec ", spec(), " needs no agreed maximum: it can encode as it is");
}

void check_sums(const Codec& codec, int world) {
  if (codec.most_summed() && codec.most_summed() < world)
    fail(ErrorKind::invalid_argument, "codec ", codec.spec(), " holds sums of ", codec.most_summed(),
         codec.most_summed() == 1 ? " rank" : " ranks", ", not of ", world,
         ": name it without what was agreed for those");
}

std::shared_ptr<const Codec> parse_codec(std::string_view spec) {
  const size_t colon = spec.find(':');
  const CodecEntry& entry = Registry<CodecEntry>::find(spec.substr(0, colon));
  const std::string_view argument = colon == spec.npos ? std::string_view() : spec.substr(colon + 1);
  const bool missing = colon != spec.npos && argument.empty();
  if (const std::shared_ptr<const Codec> codec = missing ? nullptr : entry.make(argument)) return codec;
  fail(ErrorKind::invalid_argument, "codec '", spec, "' has a wrong argument; write ", entry.usage);
}

}  // namespace gpucomm
