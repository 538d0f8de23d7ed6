// identity on CUDA, of every dtype.
#include "base/error.h"
#include "cuda/identity_program.h"
#include "cuda/launch.h"

namespace gpucomm::cuda {
namespace {

__global__ void __launch_bounds__(kThreads)
    encode_elements(IdentityPiece piece, const std::byte* dense, std::byte* slot) {
  encode_identity(WarpExec(), piece, dense, slot);
}

__global__ void __launch_bounds__(kThreads)
    decode_elements(IdentityPiece piece, const std::byte* slot, const std::byte* own, std::byte* to) {
  decode_identity(WarpExec(), piece, slot, own, to);
}

__global__ void __launch_bounds__(kThreads)
    recode_elements(IdentityPiece piece, const std::byte* from, const std::byte* own, std::byte* to) {
  const WarpExec ex;
  write_size(ex, to, piece.bytes);
  decode_identity(ex, piece, from, own, to + kHeader);
}

IdentityPiece piece_of(const Job& job, const std::byte* dense) {
  const auto alignment = static_cast<unsigned>(reinterpret_cast<uintptr_t>(dense) % 8);
  return {job.dtype,   job.count, job.coded_bytes, alignment ? alignment & -alignment : 8,
          job.divisor, job.status};
}

size_t groups_of(const IdentityPiece& piece) { return piece.count / (kLanes * kAtOnce) + 1; }

void check_addable(const Job& job) {
  if (!reducible(job.dtype))
    fail(ErrorKind::unsupported_type, "elements of ", name_of(job.dtype), " are only moved, never added");
}

void encode(const Job& job) {
  const IdentityPiece piece = piece_of(job, job.dense);
  launch<encode_elements>(groups_of(piece), job.stream, piece, job.dense, job.to_slot);
}

void decode(const Job& job) {
  if (job.adds || job.divisor > 1) check_addable(job);
  const IdentityPiece piece = piece_of(job, job.to_dense);
  launch<decode_elements>(groups_of(piece), job.stream, piece, job.from, job.adds ? job.to_dense : nullptr,
                          job.to_dense);
}

void recode(const Job& job) {
  check_addable(job);
  const IdentityPiece piece = piece_of(job, job.dense);
  launch<recode_elements>(groups_of(piece), job.stream, piece, job.from, job.dense, job.to_slot);
}

const CodecKernels identity("identity", each<encode>, each<decode>, each<recode>);

}  // namespace
}  // namespace gpucomm::cuda
