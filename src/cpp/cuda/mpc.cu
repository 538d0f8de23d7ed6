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

// Whether this thread block has one: rows are as long as the longest.
template <class Program>
__device__ bool has_round(const Program& program) {
  return blockIdx.x < rounds_of<typename Program::Word>(program.piece);
}

// Those of one call, each a row of thread blocks.
struct MpcPieces {
  MpcPiece at[kMostPieces];
};

// Without a loop over rounds: ptxas would spill registers for what it computes before it.
template <class Source>
__global__ void __launch_bounds__(kThreads) measure_mpc(const __grid_constant__ MpcPieces pieces) {
  __shared__ typename Source::Round round;
  const BlockExec ex;
  const Source from{ex, round, pieces.at[blockIdx.y]};
  if (has_round(from)) EncodeMpc<Source>{from}.measure(blockIdx.x);
}

template <class Word>
__global__ void __launch_bounds__(kThreads) sum_up_mpc(const __grid_constant__ MpcPieces pieces) {
  __shared__ BlockSums sums;
  const BlockExec ex;
  SumUpMpc<Word, BlockExec>{ex, sums, pieces.at[blockIdx.y]}.run();
}

template <class Source>
__global__ void __launch_bounds__(kThreads, kHeld<typename Source::Word>)
    write_mpc(const __grid_constant__ MpcPieces pieces) {
  __shared__ typename Source::Round round;
  const BlockExec ex;
  const Source from{ex, round, pieces.at[blockIdx.y]};
  if (has_round(from)) EncodeMpc<Source>{from}.write(blockIdx.x);
}

template <class Form>
__global__ void __launch_bounds__(kThreads) decode_mpc(const __grid_constant__ MpcPieces pieces) {
  __shared__ MpcRound<WordOf<Form>> round;
  const BlockExec ex;
  const DecodeMpc<Form, BlockExec> decode{ex, round, pieces.at[blockIdx.y]};
  if (has_round(decode)) decode.run(blockIdx.x);
}

template <class Word>
struct MpcWork {
  MpcWork(const Job* jobs, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      const Job& job = jobs[i];
      const int distance = std::atoi(job.argument);
      pieces.at[i] = {job.count,    job.dense,   job.from,
                      job.to_dense, job.to_slot, static_cast<unsigned>(distance ? distance : 1),
                      job.divisor,  job.adds,    job.status};
      rows.add(kWarps * rounds_of<Word>(pieces.at[i]));
    }
  }
  MpcPieces pieces;
  Rows rows;
};

template <class Source>
void encode_all(const Job* jobs, size_t count) {
  using Word = typename Source::Word;
  const MpcWork<Word> work(jobs, count);
  if (work.rows.longest > kWarps) {
    launch<measure_mpc<Source>, false>(work.rows, jobs->stream, work.pieces);
    launch<sum_up_mpc<Word>>(Rows{count, 1, count}, jobs->stream, work.pieces);
  }
  launch<write_mpc<Source>, false>(work.rows, jobs->stream, work.pieces);
}

template <class Form>
struct MpcKernels {
  using Word = WordOf<Form>;

  static void encode(const Job* jobs, size_t count) { encode_all<PackMpc<Word, BlockExec>>(jobs, count); }
  static void recode(const Job* jobs, size_t count) { encode_all<AddMpc<Form, BlockExec>>(jobs, count); }
  static void decode(const Job* jobs, size_t count) {
    const MpcWork<Word> work(jobs, count);
    launch<decode_mpc<Form>, false>(work.rows, jobs->stream, work.pieces);
  }
};
using Narrow = MpcKernels<Plain<float>>;
using Wide = MpcKernels<Plain<double>>;

template <CodecKernels::LaunchAll narrow, CodecKernels::LaunchAll wide>
void by_dtype(const Job* jobs, size_t count) {
  (jobs->dtype == Dtype::float64 ? wide : narrow)(jobs, count);
}

const CodecKernels mpc("mpc", by_dtype<Narrow::encode, Wide::encode>, by_dtype<Narrow::decode, Wide::decode>,
                       by_dtype<Narrow::recode, Wide::recode>);

}  // namespace
}  // namespace gpucomm::cuda
