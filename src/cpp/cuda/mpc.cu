// mpc:D on CUDA: a thread block for each round of elements.
#include <algorithm>
#include <cstdlib>

#include "cuda/block.h"
#include "cuda/launch.h"
#include "cuda/mpc_decode_program.h"
#include "cuda/mpc_encode_program.h"

namespace gpucomm::cuda {
namespace {

// Thread blocks of a processor at a time: as many as ptxas has registers for.
template <class Word>
constexpr unsigned kHeld = sizeof(Word) == 4 ? 4 : 1;

template <class Word>
__global__ void __launch_bounds__(kThreads)
    measure_mpc(MpcPiece piece, const std::byte* dense, std::byte* slot) {
  __shared__ MpcCoding<Word> round;
  const BlockExec ex;
  MeasureMpc<Word, BlockExec>{ex, round, piece, dense, slot}.run();
}

template <class Word>
__global__ void __launch_bounds__(kThreads) sum_up_mpc(MpcPiece piece, std::byte* slot) {
  __shared__ BlockSums sums;
  const BlockExec ex;
  SumUpMpc<Word, BlockExec>{ex, sums, piece, slot}.run();
}

template <class Word>
__global__ void __launch_bounds__(kThreads, kHeld<Word>)
    write_mpc(MpcPiece piece, const std::byte* dense, std::byte* slot) {
  __shared__ MpcCoding<Word> round;
  const BlockExec ex;
  WriteMpc<Word, BlockExec>{ex, round, piece, dense, slot}.run();
}

// Pieces of one call, each a row of thread blocks.
struct MpcCoded {
  MpcPiece pieces[kMostPieces];
  std::byte *slots[kMostPieces], *denses[kMostPieces];
};

template <class Word, class Form>
__global__ void __launch_bounds__(kThreads) decode_mpc(const __grid_constant__ MpcCoded coded) {
  __shared__ MpcDecoding<Word> round;
  const BlockExec ex;
  const unsigned i = blockIdx.y;
  DecodeMpc<Word, Form, BlockExec>{ex, round, coded.pieces[i], coded.slots[i], coded.denses[i]}.run();
}

MpcPiece piece_of(const Job& job) {
  const int distance = std::atoi(job.argument);
  return {job.count, static_cast<unsigned>(distance ? distance : 1), job.adds, job.divisor, job.status};
}

template <class Word>
size_t groups_of(const Job& job) {
  return kWarps * std::max<size_t>(MpcLayout<Word>::rounds(job.count), 1);
}

template <class Word>
void encode_words(const Job& job) {
  const MpcPiece piece = piece_of(job);
  const size_t groups = groups_of<Word>(job);
  if (groups > kWarps) {
    launch<measure_mpc<Word>, false>(groups, job.stream, piece, job.dense, job.to_slot);
    launch<sum_up_mpc<Word>>(1, job.stream, piece, job.to_slot);
  }
  launch<write_mpc<Word>, false>(groups, job.stream, piece, job.dense, job.to_slot);
}

template <class Word, class Form>
void decode_words(const Job* jobs, size_t count) {
  MpcCoded coded;
  Rows rows;
  for (size_t i = 0; i < count; ++i) {
    coded.pieces[i] = piece_of(jobs[i]), coded.denses[i] = jobs[i].to_dense;
    coded.slots[i] = const_cast<std::byte*>(jobs[i].from);
    rows.add(groups_of<Word>(jobs[i]));
  }
  launch<decode_mpc<Word, Form>, false>(rows, jobs->stream, coded);
}

void encode(const Job& job) {
  (job.dtype == Dtype::float64 ? encode_words<uint64_t> : encode_words<uint32_t>)(job);
}

void decode(const Job* jobs, size_t count) {
  const bool wide = jobs->dtype == Dtype::float64;
  (wide ? decode_words<uint64_t, Plain<double>> : decode_words<uint32_t, Plain<float>>)(jobs, count);
}

const CodecKernels mpc("mpc", each<encode>, decode, nullptr);

}  // namespace
}  // namespace gpucomm::cuda
