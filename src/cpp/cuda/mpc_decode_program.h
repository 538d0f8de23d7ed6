// The decoder of mpc, and partial sums for its encoder.
#pragma once
#include "cuda/identity_program.h"
#include "cuda/mpc_unpack_program.h"

namespace gpucomm::cuda {

// Form: how elements are added, Plain<float> or Plain<double>.
template <class Form>
using WordOf = std::conditional_t<sizeof(typename Form::Stored) == 8, uint64_t, uint32_t>;

// Bits of own + value.
template <class Form>
GPUCOMM_PROGRAM WordOf<Form> added(const std::byte* own, WordOf<Form> bits) {
  using Stored = typename Form::Stored;
  const auto value = __builtin_bit_cast(Stored, bits);
  return __builtin_bit_cast(WordOf<Form>, fold_two<Form, Sum>(load<Stored>(own), value));
}

template <class Form, class Exec>
struct DecodeMpc {
  using Word = WordOf<Form>;
  using Round = MpcRound<Word>;

  const Exec& ex;
  Round& round;
  const MpcPiece& piece;

  GPUCOMM_PROGRAM void run(size_t i) const {
    if (!UnpackMpc<Word, Exec>{ex, round, piece}.fetch(i)) return;
    if (piece.divisor > 1)
      put_all(i, [&](std::byte* at, Word bits) { put(at, piece.adds ? added<Form>(at, bits) : bits); });
    else if (piece.adds)
      put_all(i, [](std::byte* at, Word bits) { store(at, added<Form>(at, bits)); });
    else
      put_all(i, [](std::byte* at, Word bits) { store(at, bits); });
  }

 private:
  template <class Put>
  GPUCOMM_PROGRAM void put_all(size_t i, const Put& put) const {
    std::byte* const to = piece.to_dense + i * Round::kElements * sizeof(Word);
    each_in_turn<true>(ex, round, elements_of<Word>(piece, i),
                       [&](size_t k, Word word) { put(to + k * sizeof(Word), word); });
  }

  GPUCOMM_PROGRAM void put(std::byte* at, Word bits) const {
    const auto value = __builtin_bit_cast(typename Form::Stored, bits);
    store(at, Form::store(Divide::apply(value, piece.divisor)));
  }
};

// Rounds of a partial sum: of what a message decodes to and the own operand. Of a damaged message they are
// the operand's alone, for all that reads them must find the same.
template <class Form, class E>
struct AddMpc {
  using Exec = E;
  using Word = WordOf<Form>;
  using Round = MpcRound<Word>;

  const Exec& ex;
  Round& round;
  const MpcPiece& piece;

  GPUCOMM_PROGRAM void fetch(size_t i) const {
    const bool there = UnpackMpc<Word, Exec>{ex, round, piece}.fetch(i);
    const std::byte* const own = piece.dense + i * Round::kElements * sizeof(Word);
    each_in_turn<true>(ex, round, elements_of<Word>(piece, i), [&](size_t k, Word& word) {
      word = added<Form>(own + k * sizeof(Word), there ? word : 0);
    });
  }
};

}  // namespace gpucomm::cuda
