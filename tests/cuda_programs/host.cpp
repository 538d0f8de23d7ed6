// The programs of the CUDA codecs for ctypes, run by loops. Every access is looked at: it must be aligned,
// and within the memory that the call names.
#include <memory>
#include <stdexcept>
#include <vector>

#include "cuda/casts_program.h"
#include "cuda/convert_program.h"
#include "cuda/copy_program.h"
#include "cuda/fixed_program.h"
#include "cuda/fp8_program.h"
#include "cuda/identity_program.h"
#include "cuda/integers_program.h"
#include "cuda/mpc_decode_program.h"
#include "cuda/mpc_encode_program.h"
#include "cuda/recode_program.h"
#include "cuda/zfp_program.h"
#include "loops.h"

namespace gpucomm::cuda {
namespace {

struct Range {
  const std::byte* begin;
  size_t bytes;
};
Range ranges[3];
unsigned long long wrong = 0;

}  // namespace

std::string describe_status(Status status);  // of coding.h, which needs CUDA's headers

void accessed(const void* at, size_t bytes, size_t alignment) {
  const auto* first = static_cast<const std::byte*>(at);
  bool inside = false;
  for (const Range& range : ranges)
    inside |= range.begin && first >= range.begin && first + bytes <= range.begin + range.bytes;
  wrong += !inside || reinterpret_cast<uintptr_t>(at) % alignment != 0;
}

}  // namespace gpucomm::cuda

using namespace gpucomm;
using namespace gpucomm::cuda;

struct Call {
  const char* spec;
  const char* op;  // encode, decode, fused, add
  unsigned dtype;  // of Dtype
  unsigned adds, divisor, seed;
  uint64_t count, coded_bytes, room;  // room: of a slot, header included
  std::byte *dense, *slot, *other;    // fused, add: from `slot` to `other`
  uint64_t wrong, status, reports;    // found
};

namespace {

constexpr size_t kSomeWarps = 11;  // more than a thread block's

template <class Run>
void each_warp(unsigned seed, const Run& run) {
  size_t order[kSomeWarps];
  std::iota(order, order + kSomeWarps, size_t{0});
  if (seed) std::shuffle(order, order + kSomeWarps, std::minstd_rand(seed));
  for (const size_t warp : order) run(Loops(warp, kSomeWarps, seed));
}

template <class Math>
void run(const Call& call, const char* argument, Status* status) {
  const Kind kind = kind_of(static_cast<Dtype>(call.dtype));
  const bool aligned = reinterpret_cast<uintptr_t>(call.dense) % (kPerLane * cuda::size_of(kind)) == 0;
  const Dense dense{call.dense, call.count, kind, aligned};
  const Piece<Math> piece{Math::make(argument), dense, call.coded_bytes, status};
  const std::string_view op = call.op;
  each_warp(call.seed, [&](const Loops& ex) {
    const auto shared = std::make_unique<typename Math::Shared>();
    std::memset(static_cast<void*>(shared.get()), 0xa5, sizeof *shared);
    for (unsigned thread = 0; thread < kLanes; ++thread) prepare(*shared, thread, kLanes);
    if (op == "encode") Encode<Math, const Loops>{ex, *shared, piece, call.slot}.run();
    if (op == "decode")
      Decode<Math, const Loops>{ex, *shared, piece, call.slot, call.adds != 0, static_cast<int>(call.divisor)}
          .run();
    if (op == "fused") Recode<Math, const Loops>{ex, *shared, piece, call.slot, call.other}.run();
  });
}

void run_identity(const Call& call, Status* status) {
  const auto dtype = static_cast<Dtype>(call.dtype);
  const auto alignment = static_cast<unsigned>(reinterpret_cast<uintptr_t>(call.dense) % 8);
  const IdentityPiece piece{dtype,
                            call.count,
                            call.coded_bytes,
                            alignment ? alignment & -alignment : 8,
                            static_cast<int>(call.divisor),
                            status};
  const std::string_view op = call.op;
  each_warp(call.seed, [&](const Loops& ex) {
    if (op == "encode") encode_identity(ex, piece, call.dense, call.slot);
    if (op == "decode") decode_identity(ex, piece, call.slot, call.adds ? call.dense : nullptr, call.dense);
    if (op == "fused") write_size(ex, call.other, piece.bytes);
    if (op == "fused") decode_identity(ex, piece, call.slot, call.dense, call.other + kHeader);
  });
}

template <class T>
void run_fixed(const Call& call, const char* argument, Status* status) {
  if (std::string_view(call.op) != "add") return run<Fixed<T>>(call, argument, status);
  each_warp(call.seed, [&](const Loops& ex) {
    AddCoded<T, const Loops>{ex, call.count, call.coded_bytes, call.slot, call.other, status}.run();
  });
}

// A thread block for each round, in any order, with memory of its own.
template <class Word, class Run>
void each_round(const MpcPiece& piece, unsigned seed, const Run& run) {
  std::vector<size_t> order(rounds_of<Word>(piece));
  std::iota(order.begin(), order.end(), size_t{0});
  if (seed) std::shuffle(order.begin(), order.end(), std::minstd_rand(seed));
  for (const size_t i : order) {
    const auto round = std::make_unique<MpcRound<Word>>();
    std::memset(static_cast<void*>(round.get()), 0xa5, sizeof *round);
    run(BlockLoops(i, order.size(), seed), *round, i);
  }
}

template <class Source>
void encode_mpc(const MpcPiece& piece, unsigned seed) {
  using Word = typename Source::Word;
  const auto each = [&](auto run) {
    each_round<Word>(piece, seed, [&](const BlockLoops& ex, MpcRound<Word>& round, size_t i) {
      const Source from{ex, round, piece};
      run(EncodeMpc<Source>{from}, i);
    });
  };
  if (rounds_of<Word>(piece) > 1) {
    each([](const auto& encode, size_t i) { encode.measure(i); });
    BlockSums sums;
    SumUpMpc<Word, BlockLoops>{BlockLoops(0, 1, seed), sums, piece}.run();
  }
  each([](const auto& encode, size_t i) { encode.write(i); });
}

template <class Form>
void run_mpc(const Call& call, const char* argument, Status* status) {
  using Word = WordOf<Form>;
  const std::string_view op = call.op;
  const MpcPiece piece{call.count,
                       call.dense,
                       call.slot,
                       call.dense,
                       op == "fused" ? call.other : call.slot,
                       static_cast<unsigned>(*argument ? std::atoi(argument) : 1),
                       static_cast<int>(call.divisor),
                       call.adds != 0,
                       status};
  if (op == "encode") return encode_mpc<PackMpc<Word, BlockLoops>>(piece, call.seed);
  if (op == "fused") return encode_mpc<AddMpc<Form, BlockLoops>>(piece, call.seed);
  each_round<Word>(piece, call.seed, [&](const BlockLoops& ex, MpcRound<Word>& round, size_t i) {
    DecodeMpc<Form, BlockLoops>{ex, round, piece}.run(i);
  });
}

void run_named(const Call& call, Status* status) {
  const std::string_view spec = call.spec;
  const size_t colon = std::min(spec.find(':'), spec.size());
  const std::string_view name = spec.substr(0, colon);
  const char* const argument = call.spec + std::min(colon + 1, spec.size());
  if (name == "identity") return run_identity(call, status);
  if (name == "mpc" && static_cast<Dtype>(call.dtype) == Dtype::float32)
    return run_mpc<Plain<float>>(call, argument, status);
  if (name == "mpc") return run_mpc<Plain<double>>(call, argument, status);
  if (name == "bf16") return run<Bf16>(call, argument, status);
  if (name == "fp16") return run<Fp16>(call, argument, status);
  if (name == "fp8_e4m3") return run<cuda::E4m3>(call, argument, status);
  if (name == "fp8_e5m2") return run<cuda::E5m2>(call, argument, status);
  if (name == "int8") return run<Int8>(call, argument, status);
  if (name == "int4") return run<Int4>(call, argument, status);
  if (name == "zfp" && fills_words(argument)) return run<ZfpWord>(call, argument, status);
  if (name == "zfp") return run<Zfp>(call, argument, status);
  if (name != "fixed") throw std::logic_error("no program of this name");
  const int width = parse_fixed(argument).value().width;
  if (width == 8) return run_fixed<int8_t>(call, argument, status);
  if (width == 16) return run_fixed<int16_t>(call, argument, status);
  run_fixed<int32_t>(call, argument, status);
}

}  // namespace

extern "C" void run_program(Call* call) {
  const size_t size = gpucomm::size_of(static_cast<Dtype>(call->dtype));
  ranges[0] = {call->dense, call->count * size};
  ranges[1] = {call->slot, call->room};
  ranges[2] = {call->other, call->room};
  Status status = call->status;
  wrong = 0, Loops::reports = 0;
  run_named(*call, &status);
  call->wrong = wrong, call->status = status, call->reports = Loops::reports;
}

// Returns the accesses that were wrong.
extern "C" unsigned long long convert_floats(unsigned from, const std::byte* in, unsigned to, std::byte* out,
                                             uint64_t count, unsigned seed) {
  const Dense given = dense_of(static_cast<Dtype>(from), in, count);
  const Dense made = dense_of(static_cast<Dtype>(to), out, count);
  ranges[0] = {in, count * cuda::size_of(given.kind)};
  ranges[1] = {out, count * cuda::size_of(made.kind)};
  ranges[2] = {};
  wrong = 0;
  each_warp(seed, [&](const Loops& ex) { convert_tiles(ex, given, made); });
  return wrong;
}

// The same.
extern "C" unsigned long long copy_bytes_of(const std::byte* from, std::byte* to, uint64_t bytes,
                                            unsigned seed) {
  ranges[0] = {from, bytes}, ranges[1] = {to, bytes}, ranges[2] = {};
  wrong = 0;
  each_warp(seed, [&](const Loops& ex) { copy_span(ex, from, to, bytes); });
  return wrong;
}

// Of blocks of 4, how many are coded quickly, and how many are then decoded quickly too.
extern "C" void count_zfp_words(const Four* blocks, uint64_t count, uint64_t* coded, uint64_t* decoded) {
  *coded = *decoded = 0;
  for (; count > 0; --count, ++blocks) {
    uint32_t word = 0;
    Four x = *blocks;
    if (!encode_word_quickly(kZfpEncodeTable, x, largest_bits(x), word)) continue;
    ++*coded, *decoded += add_word(kZfpDecodeTable, word, x);
  }
}

// Of all codes behind a header, how many are decoded quickly, and how many of these not as the format says.
extern "C" void decode_all_zfp_words(uint32_t header, uint64_t* quick, uint64_t* wrong) {
  *quick = *wrong = 0;
  for (uint32_t code = 0; code >> kZfpCodeBits == 0; ++code) {
    Four x = {}, expected = {};
    if (!add_word(kZfpDecodeTable, code << kZfpHeaderBits | header, x)) continue;
    decode_word_by_bits(code << kZfpHeaderBits | header, expected);
    ++*quick, *wrong += std::memcmp(&x, &expected, sizeof x) != 0;
  }
}

extern "C" const char* describe(uint64_t status) {
  static std::string text;
  text = describe_status(status);
  return text.c_str();
}
