// A device has memory of its own and streams of work, which the host only enqueues. CUDA is one; the host
// device, made of threads, is another, on which all that uses devices is tested without a GPU.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"
#include "codecs/codec.h"
#include "codecs/norms.h"

namespace gpucomm {

// Handles; what they point to is the device's business (cudaStream_t, cudaEvent_t).
using Stream = void*;
using Event = void*;

inline constexpr int kMaxSources = 64;       // of a fold: as many as a communicator has ranks
inline constexpr size_t kDeviceAlign = 256;  // what a device allocates begins on a multiple of it
inline constexpr size_t kNormParts = 2048;   // of sums of squares, which work side by side

// As reduce() of reduce/reduce.h, into one or more destinations, each of which may be one of the sources. All
// memory is the device's, or what it can reach.
struct Fold {
  Dtype dtype = Dtype::float32;
  Op op = Op::sum;
  int divisor = 1;
  std::vector<std::byte*> destinations;   // at most kMaxSources
  std::vector<const std::byte*> sources;  // in the order of the fold
  size_t count = 0;
};

// What goes wrong in coding that has run: an element that a codec cannot carry, damaged bytes. It
// stays, but what is worse takes its place. Threads may share it.
class CodingFaults {
 public:
  virtual ~CodingFaults() = default;
  virtual std::string text() const = 0;  // empty: nothing
};

// A piece in dense and in coded form. A slot holds the coded bytes' number as a uint64, which the device
// itself writes and reads, then the bytes, whose alignment is 8.
struct CodedPiece {
  std::shared_ptr<const Codec> codec;
  Dtype dtype = Dtype::float32;
  size_t count = 0;  // elements
  // The device's, which stay as long as what is enqueued; null: what goes wrong is its failure().
  CodingFaults* faults = nullptr;
};

// What a device is given to do, by itself or beside others.
struct Copy {
  std::byte* to;
  const std::byte* from;
  size_t bytes;
};
struct Encoding {
  CodedPiece piece;
  const std::byte* dense;
  std::byte* slot;
};
struct Decoding {
  CodedPiece piece;
  const std::byte* slot;
  std::byte* dense;
};
struct Recoding {  // to = coded (decoded `from` + own), in another slot
  CodedPiece piece;
  const std::byte *from, *own;
  std::byte* to;
};

// Threads may share it. What is enqueued runs in the order of its stream, later; it never blocks the host and
// allocates nothing. Throws unavailable, naming the device, where the device refuses.
class Device {
 public:
  virtual ~Device() = default;
  virtual std::string name() const = 0;  // "cuda:0"

  // From here on this device's work may use the other's memory. Throws unavailable where it cannot.
  virtual void reach(const Device& other) = 0;
  // Why work of devices that have reached this one cannot use an array of it all the same; empty: it can.
  virtual std::string withholds(const std::byte*) { return ""; }

  // On a multiple of kDeviceAlign. The error text says how much was asked for.
  virtual std::byte* allocate(size_t bytes) = 0;
  virtual void release(std::byte* memory) noexcept = 0;
  // Until this says so, work of this device may never end: what waits for all of it is put off.
  virtual void put_releases_off(std::function<bool()> /*ended*/) {}
  virtual bool releases_at_once() { return true; }
  // Page-locked memory of the host, which any device's work may use as its own. Aligned alike.
  virtual std::byte* allocate_pinned(size_t bytes) = 0;
  virtual void release_pinned(std::byte* memory) noexcept = 0;

  virtual Stream make_stream() = 0;
  virtual void end_stream(Stream stream) noexcept = 0;
  virtual Event make_event() = 0;
  virtual void end_event(Event event) noexcept = 0;
  // The event is done when all is that the stream holds now. Recorded again, it forgets the former time. Both
  // must be this device's own, while streams wait for other devices' events too.
  virtual void record(Event event, Stream stream) = 0;
  // What the stream gets from now on runs after what the event was last recorded behind; at once where it
  // never was.
  virtual void wait(Stream stream, Event event) = 0;
  // Asked by the host; never recorded is done.
  virtual bool done(Event event) = 0;
  // The capture of a graph that keeps what this stream gets, in place of running it; 0: none. Throws
  // invalid_argument where this device cannot use the stream: it is another's, or its capture has failed.
  virtual uint64_t capture_of(Stream stream) = 0;

  // All of one call: at least one, side by side, which takes less than one after the other. None writes what
  // another one reads or writes. Folds are of one dtype, op, divisor and number of sources, pieces of one
  // codec and dtype.
  virtual void copy_all(const std::vector<Copy>& all, Stream stream) = 0;
  virtual void reduce_all(const std::vector<Fold>& all, Stream stream) = 0;
  virtual void encode_all(const std::vector<Encoding>& all, Stream stream) = 0;
  // adds: to what is in `dense`, rounded once. divisor > 1 divides the outcome.
  virtual void decode_all(const std::vector<Decoding>& all, bool adds, int divisor, Stream stream) = 0;
  // The sum itself goes nowhere.
  virtual void recode_all(const std::vector<Recoding>& all, Stream stream) = 0;
  void copy(std::byte* to, const std::byte* from, size_t bytes, Stream stream) {
    copy_all({{to, from, bytes}}, stream);
  }
  void reduce(const Fold& fold, Stream stream) { reduce_all({fold}, stream); }
  void decode(const CodedPiece& piece, const std::byte* slot, std::byte* dense, bool adds, int divisor,
              Stream stream) {
    decode_all({{piece, slot, dense}}, adds, divisor, stream);
  }
  // As scale() of reduce/scale.h.
  virtual void scale(Dtype dtype, std::byte* to, const std::byte* from, size_t count, double factor,
                     Stream stream) = 0;
  // As convert() of codecs/floats.h.
  virtual void convert(Dtype from, const std::byte* in, Dtype to, std::byte* out, size_t count,
                       Stream stream) = 0;
  // As difference() of codecs/coding.h.
  virtual void difference(Dtype dtype, const std::byte* dense, std::byte* error, int times, size_t count,
                          Stream stream) = 0;
  // As add_squares() of codecs/norms.h, into kNormParts of NormSums, whose total counts.
  virtual void add_squares(const Squared& of, std::byte* parts, Stream stream) = 0;
  // Why it cannot code these elements; empty: it can.
  virtual std::string refuses(const Codec& codec, Dtype dtype) const = 0;
  // Of additive codecs: into += from, both coded.
  virtual void add_coded(const CodedPiece& piece, const std::byte* from, std::byte* into, Stream stream) = 0;

  // Memory and events that other processes open by their handles, which are bytes to send them. `shares`: why
  // this device has none; empty: it has. release and end_event end them, where they were opened too but for
  // memory. What was opened is of use as long as its maker keeps it; only the maker records an event.
  virtual std::string shares() { return concat(name(), " shares no memory with other processes"); }
  // Handles of a little memory and of an event that stay, by which other processes try whether they can.
  struct Probe {
    std::string memory, event;
  };
  virtual Probe probe() { fail(ErrorKind::unavailable, shares()); }
  virtual std::byte* allocate_shared(size_t) { fail(ErrorKind::unavailable, shares()); }
  virtual std::string export_memory(const std::byte*) { fail(ErrorKind::unavailable, shares()); }
  virtual std::byte* open_memory(const std::string&) { fail(ErrorKind::unavailable, shares()); }
  virtual void close_memory(std::byte*) noexcept {}
  virtual Event make_shared_event() { fail(ErrorKind::unavailable, shares()); }
  virtual std::string export_event(Event) { fail(ErrorKind::unavailable, shares()); }
  virtual Event open_event(const std::string&) { fail(ErrorKind::unavailable, shares()); }

  // For this device and what it reaches.
  virtual std::unique_ptr<CodingFaults> make_faults() = 0;

  // Calls what asks which device is current in this thread, as libraries do.
  virtual void with_current(const std::function<void()>& call) { call(); }

  // What went wrong in work that has run: a fault of the device, and of coding where nobody else is told.
  // Empty: nothing. It stays.
  virtual std::string failure() = 0;
};

}  // namespace gpucomm
