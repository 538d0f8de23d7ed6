// mpc:D on CUDA, by one thread block: as fast as a link between machines, not as the memory.
#include <cstdlib>

#include "cuda/block.h"
#include "cuda/launch.h"
#include "cuda/mpc_decode_program.h"
#include "cuda/mpc_encode_program.h"

namespace gpucomm::cuda {
namespace {

template <class Word>
__global__ void __launch_bounds__(kThreads)
    encode_mpc(MpcPiece piece, const std::byte* dense, std::byte* slot) {
  __shared__ MpcRound<Word> round;
  const BlockExec ex;
  EncodeMpc<Word, BlockExec>{ex, round, piece, dense, slot}.run();
}

template <class Word, class Form>
__global__ void __launch_bounds__(kThreads)
    decode_mpc(MpcPiece piece, const std::byte* slot, std::byte* dense) {
  __shared__ MpcRound<Word> round;
  const BlockExec ex;
  DecodeMpc<Word, Form, BlockExec>{ex, round, piece, slot, dense}.run();
}

MpcPiece piece_of(const Job& job) {
  const int distance = std::atoi(job.argument);
  return {job.count, job.coded_bytes, static_cast<unsigned>(distance ? distance : 1),
          job.adds,  job.divisor,     job.status};
}

constexpr size_t kGroups = 1;  // of warps: one thread block

void encode(const Job& job) {
  const MpcPiece piece = piece_of(job);
  if (job.dtype == Dtype::float64)
    launch<encode_mpc<uint64_t>>(kGroups, job.stream, piece, job.dense, job.to_slot);
  else
    launch<encode_mpc<uint32_t>>(kGroups, job.stream, piece, job.dense, job.to_slot);
}

void decode(const Job& job) {
  const MpcPiece piece = piece_of(job);
  if (job.dtype == Dtype::float64)
    launch<decode_mpc<uint64_t, Plain<double>>>(kGroups, job.stream, piece, job.from, job.to_dense);
  else
    launch<decode_mpc<uint32_t, Plain<float>>>(kGroups, job.stream, piece, job.from, job.to_dense);
}

const CodecKernels mpc("mpc", encode, each<decode>, nullptr);

}  // namespace
}  // namespace gpucomm::cuda
