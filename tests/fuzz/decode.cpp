// Every decoder on any bytes, by itself and in one pass with the encoder as at a hop of a collective: it may
// throw Error, and nothing else may happen. Run by tools/fuzz.sh.
// The first three bytes choose the codec, the dtype and the count; the rest is the stream, either as it is
// or, so that the fixed sizes are met, cut or filled up to the size that the codec expects.
#include <algorithm>
#include <cstdlib>
#include <vector>

#include "codecs/codec.h"

namespace {

using namespace gpucomm;

std::vector<std::shared_ptr<const Codec>> make_codecs() {
  std::vector<std::shared_ptr<const Codec>> codecs;
  for (const auto& [name, entry] : Registry<CodecEntry>::all()) {
    for (const std::string& spec : entry.examples) {
      const auto codec = parse_codec(spec);
      codecs.push_back(codec->traits().needs_maximum ? codec->agreed(4.0, 8) : codec);
    }
  }
  return codecs;
}

// Exactly as many bytes as it needs, so that the sanitizer sees the first one read or written beyond.
std::vector<std::byte> exactly(const uint8_t* data, size_t bytes, size_t wanted) {
  std::vector<std::byte> copy(wanted);
  std::copy_n(reinterpret_cast<const std::byte*>(data), std::min(bytes, wanted), copy.data());
  return copy;
}

void check(const Codec& codec, const std::vector<std::byte>& stream, size_t count, Dtype dtype) {
  std::vector<std::byte> out(count * size_of(dtype)), apart(out.size());
  try {
    codec.decode(stream.data(), stream.size(), count, dtype, out.data());
    codec.decode_onto(stream.data(), stream.size(), out.data(), count, dtype, apart.data());
    codec.decode_add(stream.data(), stream.size(), count, dtype, out.data());
    if (out != apart) std::abort();
    if (codec.traits().additive) {
      std::vector<std::byte> into = stream;
      codec.add(stream.data(), stream.size(), into.data());
    }
  } catch (const Error&) {
    return;
  }
  if (codec.traits().lossy) return;
  // What decodes losslessly can be coded again.
  std::vector<std::byte> again(codec.max_bytes(count, dtype)), back(out.size());
  codec.decode(stream.data(), stream.size(), count, dtype, out.data());
  const size_t bytes = codec.encode(out.data(), count, dtype, again.data());
  codec.decode(again.data(), bytes, count, dtype, back.data());
  if (out != back) std::abort();
}

// What a hop makes of a peer's bytes is what decode_add and encode make of them.
void check_hop(const Codec& codec, const std::vector<std::byte>& stream, size_t count, Dtype dtype) {
  std::vector<std::byte> sum(count * size_of(dtype)), once(codec.max_bytes(count, dtype)), twice(once.size());
  try {
    if (!codec.decode_add_encode(stream.data(), stream.size(), sum.data(), count, dtype, once.data())) return;
  } catch (const Error&) {
    return;
  }
  codec.decode_add(stream.data(), stream.size(), count, dtype, sum.data());
  const size_t bytes = codec.encode(sum.data(), count, dtype, twice.data());
  if (!std::equal(once.begin(), once.begin() + static_cast<ptrdiff_t>(bytes), twice.begin())) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto codecs = make_codecs();
  if (size < 4) return 0;
  const Codec& codec = *codecs[data[0] % codecs.size()];
  const auto dtype = static_cast<Dtype>(data[1] % 4);  // the floats
  const size_t count = data[2] * (data[3] % 8 + 1);
  data += 4, size -= 4;
  if (!codec.takes(dtype)) return 0;
  for (const size_t wanted : {size, codec.max_bytes(count, dtype)}) {
    const auto stream = exactly(data, size, wanted);
    check(codec, stream, count, dtype);
    check_hop(codec, stream, count, dtype);
  }
  return 0;
}
