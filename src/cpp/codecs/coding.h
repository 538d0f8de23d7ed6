// A coded piece in its slot: the size of its bytes, then the bytes.
#pragma once
#include <array>
#include <cstring>

#include "base/error.h"
#include "codecs/codec.h"

namespace gpucomm {

inline constexpr size_t kCodedHeader = 8;

inline uint64_t coded_size(const std::byte* slot) {
  uint64_t size;
  std::memcpy(&size, slot, sizeof size);
  return size;
}

// error = times x (dense - error), as Losses.
void difference(Dtype dtype, const std::byte* dense, std::byte* error, int times, size_t count);

struct PieceCoding {
  const Codec& codec;
  Dtype dtype;
  size_t count;  // elements of the piece
  size_t room;   // bytes in a slot

  void encode(const std::byte* dense, std::byte* slot, CodecError* error = nullptr,
              Losses losses = {}) const {
    const uint64_t size = codec.encode(dense, count, dtype, slot + kCodedHeader, error, losses);
    std::memcpy(slot, &size, sizeof size);
  }
  void decode(const std::byte* slot, std::byte* dense, bool adds) const {
    (codec.*(adds ? &Codec::decode_add : &Codec::decode))(slot + kCodedHeader, checked(slot), count, dtype,
                                                          dense);
  }
  // dense = own + what the slot decodes to.
  void decode_onto(const std::byte* slot, const std::byte* own, std::byte* dense) const {
    if (own == dense) return decode(slot, dense, true);
    codec.decode_onto(slot + kCodedHeader, checked(slot), own, count, dtype, dense);
  }
  // In one pass, where the codec has one: `to` = coded (own + what `from` decodes to).
  bool recode(const std::byte* from, const std::byte* own, std::byte* to, Losses losses = {}) const {
    const uint64_t size = codec.max_bytes(count, dtype);
    if (!codec.decode_add_encode(from + kCodedHeader, checked(from), own, count, dtype, to + kCodedHeader,
                                 losses))
      return false;
    std::memcpy(to, &size, sizeof size);
    return true;
  }
  void add(const std::byte* from, std::byte* into) const {
    codec.add(from + kCodedHeader, checked(from), into + kCodedHeader);
  }

 private:
  size_t checked(const std::byte* slot) const {
    const uint64_t size = coded_size(slot);
    if (size > room)
      fail(ErrorKind::mismatch, "a coded message says that it has ", size, " bytes where at most ", room,
           " fit");
    return size;
  }
};

// Seconds that a byte takes to encode and to decode, in a core's cache, in the mean of a while.
std::array<double, 2> time_coding(const Codec& codec, Dtype dtype);

}  // namespace gpucomm
