// From a codec to its kernels.
#include "cuda/coding.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "cuda/kernels.h"

namespace gpucomm::cuda {
namespace {

std::string_view name_in(std::string_view spec) { return spec.substr(0, spec.find(':')); }

const CodecKernels* find(std::string_view name) {
  const CodecKernels* found = CodecKernels::first;
  while (found && found->name != name) found = found->next;
  return found;
}

std::string known() {
  std::string names;
  for (const CodecKernels* one = CodecKernels::first; one; one = one->next)
    names += (names.empty() ? "" : ", ") + std::string(one->name);
  return names;
}

// The kernels of a codec, and the codec's argument.
struct Found {
  const CodecKernels& kernels;
  std::string spec;
  const char* argument() const {
    const size_t name = name_in(spec).size();
    return spec.c_str() + name + (name < spec.size());
  }
};

template <class Launch>
Found kernels_of(const Codec& codec, Launch CodecKernels::* which) {
  std::string spec = codec.spec();
  const CodecKernels* kernels = find(name_in(spec));
  if (!kernels || !(kernels->*which))
    fail(ErrorKind::invalid_argument, "codec ", spec, " has no kernel for this on CUDA devices");
  return {*kernels, std::move(spec)};
}

Job filled(Job job, const CodedPiece& piece, const Found& found) {
  job.dtype = piece.dtype, job.count = piece.count;
  job.coded_bytes = piece.codec->max_bytes(piece.count, piece.dtype);
  job.argument = found.argument();
  return job;
}

void run(CodecKernels::Launch CodecKernels::* which, const CodedPiece& piece, Job job) {
  const Found found = kernels_of(*piece.codec, which);
  (found.kernels.*which)(filled(std::move(job), piece, found));
}

}  // namespace

std::string refuses(const Codec& codec, Dtype dtype) {
  const std::string spec = codec.spec();
  if (!find(name_in(spec)))
    return concat("codec ", spec, " has no kernels for CUDA devices; those that have: ", known());
  if (!codec.takes(dtype)) return concat("codec ", spec, " does not take ", name_of(dtype));
  if (codec.traits().needs_maximum)
    return concat("codec ", spec, " must agree on the largest magnitude before it can code");
  return {};
}

void encode(const CodedPiece& piece, const std::byte* dense, std::byte* slot, Status* status,
            cudaStream_t stream) {
  run(&CodecKernels::encode, piece, {.dense = dense, .to_slot = slot, .status = status, .stream = stream});
}

void decode(const std::vector<Decoding>& all, bool adds, int divisor, Status* status, cudaStream_t stream) {
  const Found found = kernels_of(*all[0].piece.codec, &CodecKernels::decode);
  for (size_t begin = 0; begin < all.size(); begin += kMostPieces) {
    Job jobs[kMostPieces];
    const size_t some = std::min(all.size() - begin, kMostPieces);
    for (size_t i = 0; i < some; ++i) {
      const auto& [piece, slot, dense] = all[begin + i];
      jobs[i] = filled({.from = slot,
                        .to_dense = dense,
                        .adds = adds,
                        .divisor = divisor,
                        .status = status,
                        .stream = stream},
                       piece, found);
    }
    found.kernels.decode(jobs, some);
  }
}

void add_coded(const CodedPiece& piece, const std::byte* from, std::byte* into, Status* status,
               cudaStream_t stream) {
  run(&CodecKernels::add_coded, piece, {.from = from, .to_slot = into, .status = status, .stream = stream});
}

void decode_add_encode(const CodedPiece& piece, const std::byte* from, const std::byte* own,
                       std::byte* to_slot, Status* status, cudaStream_t stream) {
  run(&CodecKernels::decode_add_encode, piece,
      {.dense = own, .from = from, .to_slot = to_slot, .divisor = 1, .status = status, .stream = stream});
}

}  // namespace gpucomm::cuda
