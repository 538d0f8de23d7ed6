// No codec has kernels yet: refuses() says so, and who asks it first never gets further.
#include "base/error.h"
#include "cuda/coding.h"

namespace gpucomm::cuda {
namespace {

[[noreturn]] void refuse(const CodedPiece& piece) {
  fail(ErrorKind::unavailable, refuses(*piece.codec, piece.dtype));
}

}  // namespace

std::string refuses(const Codec& codec, Dtype) {
  return concat("codec '", codec.spec(), "' has no CUDA kernels yet");
}

void encode(const CodedPiece& piece, const std::byte*, std::byte*, unsigned long long*, cudaStream_t) {
  refuse(piece);
}

void decode(const CodedPiece& piece, const std::byte*, std::byte*, bool, int, unsigned long long*,
            cudaStream_t) {
  refuse(piece);
}

void add_coded(const CodedPiece& piece, const std::byte*, std::byte*, unsigned long long*, cudaStream_t) {
  refuse(piece);
}

std::string describe_status(unsigned long long status) {
  return concat("a codec stopped with status ", status);
}

}  // namespace gpucomm::cuda
