// From a codec to its kernels.
#include "cuda/coding.h"

#include "base/error.h"
#include "cuda/kernels.h"

namespace gpucomm::cuda {
namespace {

std::string_view name_in(std::string_view spec) { return spec.substr(0, spec.find(':')); }

// The spec outlives the call.
void run(CodecKernels::Launch CodecKernels::* which, const std::string& spec, Job job) {
  const std::string_view name = name_in(spec);
  if (name.size() < spec.size()) job.argument = std::string_view(spec).substr(name.size() + 1);
  const CodecKernels::Launch launch = Registry<CodecKernels>::find(name).*which;
  if (!launch)
    fail(ErrorKind::invalid_argument, "codec ", spec, " is not additive: what it coded cannot be added");
  launch(job);
}

}  // namespace

std::string refuses(const Codec& codec, Dtype dtype) {
  const std::string spec = codec.spec();
  if (!Registry<CodecKernels>::all().contains(name_in(spec)))
    return concat("codec ", spec, " has no kernels for CUDA devices; those of ",
                  Registry<CodecKernels>::known(), " do");
  if (!codec.takes(dtype)) return concat("codec ", spec, " does not take ", name_of(dtype));
  if (codec.traits().needs_maximum)
    return concat("codec ", spec, " must agree on the largest magnitude before it can code");
  return {};
}

void encode(const CodedPiece& piece, const std::byte* dense, std::byte* slot, Status* status,
            cudaStream_t stream) {
  run(&CodecKernels::encode, piece.codec->spec(),
      {.piece = piece, .dense = dense, .to_slot = slot, .status = status, .stream = stream});
}

void decode(const CodedPiece& piece, const std::byte* slot, std::byte* dense, bool adds, int divisor,
            Status* status, cudaStream_t stream) {
  run(&CodecKernels::decode, piece.codec->spec(),
      {.piece = piece,
       .from = slot,
       .to_dense = dense,
       .adds = adds,
       .divisor = divisor,
       .status = status,
       .stream = stream});
}

void add_coded(const CodedPiece& piece, const std::byte* from, std::byte* into, Status* status,
               cudaStream_t stream) {
  run(&CodecKernels::add_coded, piece.codec->spec(),
      {.piece = piece, .from = from, .to_slot = into, .status = status, .stream = stream});
}

void decode_add_encode(const CodedPiece& piece, const std::byte* from, const std::byte* own,
                       std::byte* to_slot, Status* status, cudaStream_t stream) {
  run(&CodecKernels::decode_add_encode, piece.codec->spec(),
      {.piece = piece, .dense = own, .from = from, .to_slot = to_slot, .status = status, .stream = stream});
}

}  // namespace gpucomm::cuda
