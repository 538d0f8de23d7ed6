// identity: the elements as they are. They are added and divided as reduce() does it, each step rounded,
// which is what the host's codec and the mean behind it give.
#pragma once
#include "cuda/copy_program.h"
#include "cuda/fold_math.h"
#include "cuda/tiles_program.h"

namespace gpucomm::cuda {

template <class Form, class Operation>
GPUCOMM_PROGRAM typename Form::Stored fold_two(typename Form::Stored a, typename Form::Stored b) {
  return Form::store(Operation::apply(Form::load(a), Form::load(b)));
}

// out = in, or own + in where own is not null; divided where divisor > 1.
template <class Form, class Operation, class Exec>
GPUCOMM_PROGRAM void fold_elements(const Exec& ex, const std::byte* in, const std::byte* own, std::byte* out,
                                   size_t count, int divisor) {
  using Stored = typename Form::Stored;
  each_run(ex, count, [&](size_t first) {
    Stored values[kAtOnce];
#pragma unroll
    for (unsigned i = 0; i < kAtOnce; ++i) {
      const size_t at = (first + i * kLanes) * sizeof(Stored);
      if (first + i * kLanes >= count) break;
      values[i] = load<Stored>(in + at);
      if (own) values[i] = fold_two<Form, Operation>(load<Stored>(own + at), values[i]);
    }
#pragma unroll
    for (unsigned i = 0; i < kAtOnce; ++i) {
      if (first + i * kLanes >= count) break;
      if (!std::is_same_v<Form, Boolean> && divisor > 1)
        values[i] = Form::store(Divide::apply(Form::load(values[i]), divisor));
      store(out + (first + i * kLanes) * sizeof(Stored), values[i]);
    }
  });
}

// By the dtype, which can be added.
template <class Exec, class... Args>
GPUCOMM_PROGRAM void fold_dtype(Dtype dtype, const Exec& ex, const Args&... args) {
  if (dtype == Dtype::float64) fold_elements<Plain<double>, Sum>(ex, args...);
  if (dtype == Dtype::float32) fold_elements<Plain<float>, Sum>(ex, args...);
  if (dtype == Dtype::float16) fold_elements<Float16, Sum>(ex, args...);
  if (dtype == Dtype::bfloat16) fold_elements<Bfloat16, Sum>(ex, args...);
  if (dtype == Dtype::int8) fold_elements<Plain<int8_t>, Sum>(ex, args...);
  if (dtype == Dtype::int16) fold_elements<Plain<int16_t>, Sum>(ex, args...);
  if (dtype == Dtype::int32) fold_elements<Plain<int32_t>, Sum>(ex, args...);
  if (dtype == Dtype::int64) fold_elements<Plain<int64_t>, Sum>(ex, args...);
  if (dtype == Dtype::uint8) fold_elements<Plain<uint8_t>, Sum>(ex, args...);
  if (dtype == Dtype::boolean) fold_elements<Boolean, Max>(ex, args...);
}

// The elements of a piece: from one place to another, or onto `own`. One of `from` and `to` is a slot.
struct IdentityPiece {
  Dtype dtype;
  size_t count, bytes;
  unsigned alignment;  // of both places
  int divisor;
  Status* status;
};

template <class Exec>
GPUCOMM_PROGRAM void encode_identity(const Exec& ex, const IdentityPiece& piece, const std::byte* dense,
                                     std::byte* slot) {
  write_size(ex, slot, piece.bytes);
  copy_bytes(ex, dense, slot + kHeader, piece.bytes, piece.alignment);
}

// `own` is null where nothing is added; `to` may be it.
template <class Exec>
GPUCOMM_PROGRAM void decode_identity(const Exec& ex, const IdentityPiece& piece, const std::byte* slot,
                                     const std::byte* own, std::byte* to) {
  if (!check_size(ex, slot, piece.bytes, piece.status)) return;
  if (own || (piece.divisor > 1 && piece.dtype != Dtype::boolean))
    fold_dtype(piece.dtype, ex, slot + kHeader, own, to, piece.count, piece.divisor);
  else
    copy_bytes(ex, slot + kHeader, to, piece.bytes, piece.alignment);
}

}  // namespace gpucomm::cuda
