// What all codecs of floats share. They code runs of float32; the 16-bit floats are widened on the way in and
// rounded once on the way out, so that coded bytes say nothing of the dtype.
#pragma once
#include <limits>

#include "codecs/codec.h"

namespace gpucomm {

// Elements [begin, begin + count) of a message of `total`; begin is a multiple of the codec's block, and so
// is count unless the message ends there.
struct Run {
  size_t begin, count, total;
};

class FloatCodec : public Codec {
 public:
  bool takes(Dtype dtype) const override;
  size_t max_bytes(size_t count, Dtype) const override { return coded_bytes(count); }
  size_t encode(const std::byte* in, size_t count, Dtype dtype, std::byte* out, CodecError* error,
                Losses losses) const override;
  void decode(const std::byte* in, size_t bytes, size_t count, Dtype dtype, std::byte* out) const override;
  void decode_add(const std::byte* in, size_t bytes, size_t count, Dtype dtype,
                  std::byte* accumulator) const override;
  void decode_onto(const std::byte* in, size_t bytes, const std::byte* own, size_t count, Dtype dtype,
                   std::byte* out) const override;
  bool decode_add_encode(const std::byte* in, size_t bytes, const std::byte* own, size_t count, Dtype dtype,
                         std::byte* out, Losses losses) const override;
  double bound(double block_max, Dtype dtype) const override;

 protected:
  static constexpr size_t kRun =
      1024;  // elements at a time through a buffer in L1; a multiple of every block

  virtual size_t coded_bytes(size_t count) const = 0;
  // `in` is of the run, `out` of the message. Both return the elements done: fewer than run.count where the
  // next block holds an element that cannot be carried, or is damaged. They write and read only the run's own
  // bytes.
  virtual size_t encode_run(const float* in, Run run, std::byte* out) const = 0;
  virtual size_t decode_run(const std::byte* in, Run run, float* out) const = 0;
  virtual double lost(double block_max) const = 0;  // the bound in float32
  // How far beyond the dtype's largest number decode may come by what it loses; what is further was a sum
  // beyond it.
  virtual float stray() const { return std::numeric_limits<float>::max(); }
  virtual const char* refusal(float value) const;  // why the element cannot be carried; null: it can

 private:
  struct Sums;

  void check(Dtype dtype) const;
  void check_size(size_t bytes, size_t count) const;
  void decode_checked(const std::byte* in, Run run, float* out) const;
  // As decode gives it in the dtype.
  void decode_rounded(const std::byte* in, Run run, Dtype dtype, float* out) const;
  void tell(const float* given, Run run, Dtype dtype, const std::byte* coded, Losses losses) const;
  // Adds the errors of the run; fills `given` up.
  void measure(float* given, Run run, Dtype dtype, const std::byte* coded, Sums& sums) const;
  [[noreturn]] void refuse(const float* in, size_t begin, size_t count) const;
};

}  // namespace gpucomm
