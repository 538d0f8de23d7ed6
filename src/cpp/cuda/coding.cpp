// From a codec to its kernels.
#include "cuda/coding.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "cuda/faults.h"
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
  if (piece.faults) job.status = static_cast<const CudaFaults*>(piece.faults)->device();
  job.dtype = piece.dtype, job.count = piece.count;
  job.coded_bytes = piece.codec->max_bytes(piece.count, piece.dtype);
  job.argument = found.argument();
  return job;
}

// As many at a time as fit into a kernel's parameters.
template <class One, class JobOf>
void run_all(CodecKernels::LaunchAll CodecKernels::* which, const std::vector<One>& all, JobOf job_of) {
  const Found found = kernels_of(*all[0].piece.codec, which);
  for (size_t begin = 0; begin < all.size(); begin += kMostPieces) {
    Job jobs[kMostPieces];
    const size_t some = std::min(all.size() - begin, kMostPieces);
    for (size_t i = 0; i < some; ++i) {
      const One& one = all[begin + i];
      jobs[i] = filled(job_of(one), one.piece, found);
    }
    (found.kernels.*which)(jobs, some);
  }
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

void encode(const std::vector<Encoding>& all, Status* status, cudaStream_t stream) {
  run_all(&CodecKernels::encode, all, [&](const Encoding& one) {
    return Job{.dense = one.dense, .to_slot = one.slot, .status = status, .stream = stream};
  });
}

void decode(const std::vector<Decoding>& all, bool adds, int divisor, Status* status, cudaStream_t stream) {
  run_all(&CodecKernels::decode, all, [&](const Decoding& one) {
    return Job{.from = one.slot,
               .to_dense = one.dense,
               .adds = adds,
               .divisor = divisor,
               .status = status,
               .stream = stream};
  });
}

void recode(const std::vector<Recoding>& all, Status* status, cudaStream_t stream) {
  run_all(&CodecKernels::recode, all, [&](const Recoding& one) {
    return Job{.dense = one.own,
               .from = one.from,
               .to_slot = one.to,
               .divisor = 1,
               .status = status,
               .stream = stream};
  });
}

void add_coded(const CodedPiece& piece, const std::byte* from, std::byte* into, Status* status,
               cudaStream_t stream) {
  const Found found = kernels_of(*piece.codec, &CodecKernels::add_coded);
  found.kernels.add_coded(
      filled({.from = from, .to_slot = into, .status = status, .stream = stream}, piece, found));
}

}  // namespace gpucomm::cuda
