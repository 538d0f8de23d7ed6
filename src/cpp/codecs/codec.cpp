#include "codecs/codec.h"

namespace gpucomm {

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

std::shared_ptr<const Codec> parse_codec(std::string_view spec) {
  const size_t colon = spec.find(':');
  const CodecEntry& entry = Registry<CodecEntry>::find(spec.substr(0, colon));
  const std::string_view argument = colon == spec.npos ? std::string_view() : spec.substr(colon + 1);
  const bool missing = colon != spec.npos && argument.empty();
  if (const std::shared_ptr<const Codec> codec = missing ? nullptr : entry.make(argument)) return codec;
  fail(ErrorKind::invalid_argument, "codec '", spec, "' has a wrong argument; write ", entry.usage);
}

}  // namespace gpucomm
