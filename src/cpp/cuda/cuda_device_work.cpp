// What the streams of a CUDA device do.
#include "cuda/cuda_device.h"
#include "cuda/reduce.h"

namespace gpucomm::cuda {

void CudaDevice::copy_all(const std::vector<Copy>& all, Stream stream) {
  const Context::Scope scope(context_);
  cuda::copy(all, as_stream(stream));
}

void CudaDevice::reduce_all(const std::vector<Fold>& all, Stream stream) {
  const Context::Scope scope(context_);
  cuda::reduce(all, as_stream(stream));
}

void CudaDevice::scale(Dtype dtype, std::byte* to, const std::byte* from, size_t count, double factor,
                       Stream stream) {
  const Context::Scope scope(context_);
  cuda::scale(dtype, to, from, count, factor, as_stream(stream));
}

void CudaDevice::convert(Dtype from, const std::byte* in, Dtype to, std::byte* out, size_t count,
                         Stream stream) {
  const Context::Scope scope(context_);
  cuda::convert(from, in, to, out, count, as_stream(stream));
}

void CudaDevice::difference(Dtype dtype, const std::byte* dense, std::byte* error, int times, size_t count,
                            Stream stream) {
  const Context::Scope scope(context_);
  cuda::difference(dtype, dense, error, times, count, as_stream(stream));
}

void CudaDevice::add_squares(const Squared& of, std::byte* parts, Stream stream) {
  const Context::Scope scope(context_);
  cuda::add_squares(of, parts, as_stream(stream));
}

std::string CudaDevice::refuses(const Codec& codec, Dtype dtype) const { return cuda::refuses(codec, dtype); }

void CudaDevice::encode_all(const std::vector<Encoding>& all, Stream stream) {
  const Context::Scope scope(context_);
  cuda::encode(all, faults_->device(), as_stream(stream));
}

void CudaDevice::decode_all(const std::vector<Decoding>& all, bool adds, int divisor, Stream stream) {
  const Context::Scope scope(context_);
  cuda::decode(all, adds, divisor, faults_->device(), as_stream(stream));
}

void CudaDevice::recode_all(const std::vector<Recoding>& all, Stream stream) {
  const Context::Scope scope(context_);
  cuda::recode(all, faults_->device(), as_stream(stream));
}

void CudaDevice::add_coded(const CodedPiece& piece, const std::byte* from, std::byte* into, Stream stream) {
  const Context::Scope scope(context_);
  cuda::add_coded(piece, from, into, faults_->device(), as_stream(stream));
}

}  // namespace gpucomm::cuda
