// What the streams of the host device do.
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "base/copy.h"
#include "base/error.h"
#include "codecs/coding.h"
#include "codecs/floats.h"
#include "devices/apart.h"
#include "devices/host_device.h"
#include "devices/host_stream.h"
#include "reduce/reduce.h"
#include "reduce/scale.h"

namespace gpucomm {
namespace {

PieceCoding coding_of(const CodedPiece& piece) {
  return {*piece.codec, piece.dtype, piece.count, piece.codec->max_bytes(piece.count, piece.dtype)};
}

void divide(const CodedPiece& piece, std::byte* dense, int divisor) {
  const void* sources[] = {dense};
  if (divisor > 1) reduce(piece.dtype, Op::sum, dense, sources, 1, piece.count, divisor);
}

class HostFaults : public CodingFaults {
 public:
  void set(const std::string& text) {
    std::lock_guard lock(mutex_);
    if (text_.empty()) text_ = text;
  }
  std::string text() const override {
    std::lock_guard lock(mutex_);
    return text_;
  }

 private:
  mutable std::mutex mutex_;  // guards text_
  std::string text_;
};

// What goes wrong with a piece is told where it says; else it is the job's error.
template <class Call>
void tell_faults(const CodedPiece& piece, const Call& call) try {
  call(coding_of(piece));
} catch (const Error& error) {
  if (!piece.faults) throw;
  static_cast<HostFaults*>(piece.faults)->set(error.what());
}

}  // namespace

std::unique_ptr<CodingFaults> HostDevice::make_faults() { return std::make_unique<HostFaults>(); }

template <class Job>
void HostDevice::enqueue(const char* kind, Stream stream, Job job) {
  count(kind);
  std::function<void()> guarded = [this, job = std::move(job)] {
    if (lost_.load(std::memory_order_acquire)) return;
    try {
      job();
    } catch (const Error& error) {
      fail_with(error.what());
    }
  };
  if (!captures_.add(stream, guarded)) stream_of(stream).add(std::move(guarded));
}

void HostDevice::launch(const std::shared_ptr<HostGraph>& graph, Stream stream) {
  enqueue("launch", stream, [graph] { graph->run(); });
}

void HostDevice::call(Stream stream, void (*function)(void*), void* argument) {
  static_cast<HostStream*>(stream)->add([=] { function(argument); });
}

void HostDevice::copy_all(const std::vector<Copy>& all, Stream stream) {
  check_apart(all);
  enqueue("copy", stream, [=] {
    for (const Copy& copy : all) std::memmove(copy.to, copy.from, copy.bytes);
  });
}

void HostDevice::reduce_all(const std::vector<Fold>& all, Stream stream) {
  check_apart(all);
  enqueue("reduce", stream, [=] {
    for (const Fold& fold : all) {
      const std::vector<const void*> sources(fold.sources.begin(), fold.sources.end());
      std::byte* const first = fold.destinations[0];
      gpucomm::reduce(fold.dtype, fold.op, first, sources.data(), static_cast<int>(sources.size()),
                      fold.count, fold.divisor);
      for (size_t i = 1; i < fold.destinations.size(); ++i)
        copy_bytes(fold.destinations[i], first, fold.count * size_of(fold.dtype));
    }
  });
}

void HostDevice::encode_all(const std::vector<Encoding>& all, Stream stream) {
  check_apart(all);
  enqueue("encode", stream, [=] {
    for (const Encoding& one : all)
      tell_faults(one.piece, [&](const PieceCoding& coding) { coding.encode(one.dense, one.slot); });
  });
}

void HostDevice::decode_all(const std::vector<Decoding>& all, bool adds, int divisor, Stream stream) {
  check_apart(all);
  enqueue("decode", stream, [=] {
    for (const Decoding& one : all)
      tell_faults(one.piece, [&](const PieceCoding& coding) {
        coding.decode(one.slot, one.dense, adds);
        divide(one.piece, one.dense, divisor);
      });
  });
}

void HostDevice::recode_all(const std::vector<Recoding>& all, Stream stream) {
  check_apart(all);
  enqueue("recode", stream, [=] {
    for (const Recoding& one : all)
      tell_faults(one.piece, [&](const PieceCoding& coding) {
        if (coding.recode(one.from, one.own, one.to)) return;
        std::vector<std::byte> sum(one.own, one.own + coding.count * size_of(coding.dtype));
        coding.decode(one.from, sum.data(), true);
        coding.encode(sum.data(), one.to);
      });
  });
}

void HostDevice::scale(Dtype dtype, std::byte* to, const std::byte* from, size_t count, double factor,
                       Stream stream) {
  enqueue("scale", stream, [=] { gpucomm::scale(dtype, to, from, count, factor); });
}

void HostDevice::convert(Dtype from, const std::byte* in, Dtype to, std::byte* out, size_t count,
                         Stream stream) {
  enqueue("convert", stream, [=] { gpucomm::convert(from, in, to, out, count); });
}

void HostDevice::difference(Dtype dtype, const std::byte* dense, std::byte* error, int times, size_t count,
                            Stream stream) {
  enqueue("difference", stream, [=] { gpucomm::difference(dtype, dense, error, times, count); });
}

void HostDevice::add_squares(const Squared& of, std::byte* parts, Stream stream) {
  enqueue("add_squares", stream, [=] { gpucomm::add_squares(of, *reinterpret_cast<NormSums*>(parts)); });
}

void HostDevice::add_coded(const CodedPiece& piece, const std::byte* from, std::byte* into, Stream stream) {
  enqueue("add_coded", stream,
          [=] { tell_faults(piece, [&](const PieceCoding& coding) { coding.add(from, into); }); });
}

}  // namespace gpucomm
