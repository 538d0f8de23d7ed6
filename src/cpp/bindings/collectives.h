// A communicator as Python sees it: arguments are validated here, once, and arrays of asynchronous calls
// kept.
#pragma once
#include <pybind11/pybind11.h>

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bindings/array.h"
#include "bindings/lent.h"
#include "bindings/options.h"
#include "bindings/parts.h"
#include "bindings/preparation.h"
#include "bindings/work.h"
#include "engine/choose.h"
#include "engine/communicator.h"
#include "engine/in_parts.h"
#include "engine/spare.h"

namespace gpucomm {

class DeviceNorms;

// The stream of a call on an array that a device holds.
Stream stream_of(const Options& options, const Array& array);
// What "auto" takes on devices.
void choose_on_device(Shape& shape);
// The host waits for an event, looks after the other ranks meanwhile, and throws what went wrong.
void poll(const OwnEvent& event, Communicator& communicator, Clock::time_point deadline, double patience_s);
// Throws where the stream of a call that no graph takes is in a capture (Device::capture_of), and says why.
void refuse_capture(uint64_t capture, const char* why);

class PyCommunicator {
 public:
  PyCommunicator(const std::string& transport, Endpoint endpoint, double timeout_s,
                 const std::optional<Emulation>& emulation);
  // Closes: the arrays of calls under way are not kept from here on.
  ~PyCommunicator() { close(); }
  PyCommunicator(const PyCommunicator&) = delete;

  pybind11::object all_reduce(pybind11::object x, Text op, pybind11::object out, Factor scale,
                              const Options& options);
  pybind11::object reduce(pybind11::object x, int root, Text op, pybind11::object out, Factor scale,
                          const Options& options);
  pybind11::object broadcast(pybind11::object x, int root, pybind11::object out, const Options& options);
  pybind11::object all_gather(pybind11::object x, pybind11::object out, const Counts& counts,
                              const Options& options);
  pybind11::object reduce_scatter(pybind11::object x, Text op, pybind11::object out, Factor scale,
                                  const Counts& counts, const Options& options);
  pybind11::object gather(pybind11::object x, int root, pybind11::object out, const Counts& counts,
                          const Options& options);
  pybind11::object scatter(pybind11::object x, int root, pybind11::object out, const Options& options);
  pybind11::object all_to_all(pybind11::object x, pybind11::object out, const Counts& counts,
                              const Counts& out_counts, const Options& options);
  // Point to point: bind_point_to_point.cpp.
  pybind11::object send(pybind11::object x, int to, const Options& options);
  pybind11::object recv(pybind11::object x, int source, const Options& options);
  pybind11::object sendrecv(pybind11::object x, int to, pybind11::object out, int source,
                            const Options& options);
  // How a list of arrays travels: packs of (places in the list, elements, digest). Validates the arrays of a
  // call that writes them, or not, and reduces them by `op`, or not.
  // Results go into `outs` where given, each of so many `parts` of its x's count.
  pybind11::list plan_packs(const pybind11::list& xs, const std::optional<pybind11::list>& outs, int parts,
                            bool reads, bool writes, const std::optional<Text>& op, Factor scale) const;
  // One message of several arrays that a device holds, all of one dtype and validated by plan_packs. The
  // result is a list: outs, else xs, or of all_gather new arrays.
  pybind11::object packed_on_device(Collective collective, const pybind11::list& xs,
                                    std::optional<pybind11::list> outs, Text op, int root, Factor scale,
                                    const Options& options);
  // The dtype and count of x, its norm, its largest magnitude, and of each size of blocks the norm of an
  // array that holds at every element the largest magnitude of its block.
  pybind11::list norms(pybind11::object x, const std::vector<size_t>& blocks, const Options& options);
  // What "auto" would choose from for an all_reduce of x, as on all ranks, with the model's times; on a
  // device with bytes instead.
  std::vector<Choice> predict(pybind11::object x, const std::optional<std::string>& codec, Maybe timeout_s);
  // What a reduce_scatter of x by "auto" takes in place of this codec, if that is settled; it counts as one.
  std::optional<Choice> settled_without_codec(pybind11::object x, const std::string& codec, bool tells_error);
  // The calls from here on are parts of this one, "gather_objects" say; "": of none.
  void set_part_of(const std::string& call);
  pybind11::object barrier(std::optional<double> timeout_s, bool async_op);
  void abort();
  std::vector<int> survivors(int round, double patience_s);
  void close();
  // Before the first call with a codec, which would wait for it.
  void time_codec(const std::string& spec);
  // As close(), of which its caller hears: throws what check_ended_calls() finds.
  void end();
  pybind11::dict stats() const;

  // As located_at. Where there is no memory for the call all ranks are told.
  template <class Call>
  auto located(Call call) const {
    try {
      return located_at(*core_, call);
    } catch (const std::bad_alloc& error) {
      give_up(error);
    } catch (const std::length_error& error) {
      give_up(error);
    }
  }

  // As located, of a call that sends or receives; where an argument is bad the other end is told.
  template <class Call>
  auto or_tell(bool sending, int peer, Call call, int source = -1) {
    return located([&] {
      try {
        return call();
      } catch (const Error& error) {
        refuse_message(sending, peer, error, source);
        throw;
      }
    });
  }

  // Tells the other end of a message, if there is one.
  void refuse_message(bool sending, int peer, const Error& error, int source = -1);

  std::string where() const { return gpucomm::where(*core_); }
  int peer_of(const char* what, pybind11::handle rank) const;

  Communicator& core() { return *core_; }
  const Communicator& core() const { return *core_; }
  const std::optional<Emulation>& emulation() const { return emulation_; }

 private:
  [[noreturn]] void give_up(const std::exception& exception) const;
  void check_peer(const char* what, int peer) const;
  std::shared_ptr<Pending> start(bool sending, const Array& array, int peer, const Options& options);
  pybind11::object finish(std::vector<std::shared_ptr<Pending>> calls, const Lent& lent,
                          const Options& options);
  void wait_for(const std::vector<std::shared_ptr<Pending>>& calls);
  pybind11::object issue(Shape& shape, Arrays arrays, Lent&& lent, const Options& options);
  void run(const Shape& shape, const Arrays& arrays, Seconds limit);
  void run_parts(const std::vector<PartCall>& parts, Seconds limit);
  std::shared_ptr<Work> start(const PartCall& call, const Lent& lent, Seconds limit);
  pybind11::object begin(const Shape& shape, const Arrays& arrays, const Lent& lent, const Options& options,
                         Seconds limit);
  pybind11::object issue_on_device(Shape& shape, Arrays arrays, const Array& where, Lent& lent,
                                   const Options& options, Seconds limit);
  std::shared_ptr<const Codec> agreed_on_device(const Shape& shape, const Arrays& arrays, const Array& where,
                                                Seconds limit);
  void check_on_device(const Shape& shape, Device& device) const;
  // Settles with all ranks how their calls go.
  void find_way(Shape& shape, Device& device, Seconds limit);
  void choose_by_links(Shape& shape, Seconds limit);
  bool can_go(DeviceWay way, Device& device, Seconds limit);
  // How messages go; finds NCCL where that is the way.
  DeviceWay message_way();
  Shape shape(Collective collective, const Array& x, const Options& options) const;
  Shape shape(Collective collective, const Array& x, const Parts& parts, const Options& options) const;
  std::shared_ptr<const Codec> agreed_codec(Shape call, const std::string& spec, const Arrays& arrays,
                                            size_t count, Seconds limit);
  NormSums norms_on_device(Squared of, const Array& x, const Options& options);
  std::unique_ptr<DeviceNorms> begin_norms(std::shared_ptr<Device> device, Stream stream);
  NormSums total_of(std::unique_ptr<DeviceNorms> norms, Stream stream, Seconds limit) const;
  std::vector<Choice> predict_on_device(Shape call, Device& device) const;
  void agree_on_largest(double* values, size_t count, Seconds limit, Purpose purpose = Purpose::call);
  void measure_coding(const Shape& call, Seconds limit);
  void take_time(const Shape& call, Seconds limit);
  void check_root(int root) const;
  // The op of this name, where it is defined for x.
  Op reducing(const Array& x, Text name, Factor scale) const;
  void copy(const Array& x, const Array& out, const Options& options) const;
  void multiply(const Array& x, const Array& target, Factor factor, const Options& options) const;
  void multiply_apart(const Array& in, Factor scale, Arrays& arrays) const;
  pybind11::object fold(Shape& call, pybind11::object x, const Array& in, pybind11::object out, Factor scale,
                        const Options& options);
  void check_out(const Array& x, const Array& out, size_t count, const std::byte* shared,
                 size_t shared_bytes) const;
  void check_call(Shape call, Lent& lent, const Options& options);
  void check_codec(const Shape& call) const;
  void check_error(const Array& x, const Array& out, const Array& error, const Options& options) const;
  static void check_has_codec(const Options& options) {
    if (!options.codec && !options.error.is_none())
      fail(ErrorKind::invalid_argument, "error tells what a codec loses: pass codec= too");
  }
  std::byte* error_for(const Lent& lent) const;
  void check_outs(const std::deque<Array>& xs, const std::deque<Array>& outs, int parts) const;
  pybind11::object allocate(pybind11::object x, const Array& like, int64_t rows,
                            std::optional<uintptr_t> stream = {}) const;
  pybind11::object collect(Shape& call, const Parts& parts, pybind11::object x, const Array& in,
                           pybind11::object out, const Options& options);
  std::vector<int64_t> exchange(const std::vector<int64_t>& sent, const Options& options);
  Parts agree(Shape& call, const Parts& sent, const Counts& out_counts, const Options& options);
  Seconds timeout(std::optional<double> timeout_s) const;
  void measure_links(const Shape& call, Seconds limit);
  Shape own(Shape call) const;

  std::shared_ptr<Communicator> core_;
  std::optional<Emulation> emulation_;
  struct Known {
    std::shared_ptr<const Codec> codec;
    std::shared_ptr<const Codec> smallest;  // where the largest magnitude counts: as if that were 0
  };
  Known& known_codec(const std::string& spec);
  std::map<std::string, Known> codecs_;  // by spec: a call like the last has the same
  std::shared_ptr<const Codec> timed_;   // the last whose cost is known: asking the core takes a lock
  Spare spare_;                          // of devices
  Events came_;                          // of asynchronous calls: what their streams held
  std::shared_ptr<KeptArrays> kept_ =
      std::make_shared<KeptArrays>();  // of asynchronous calls, until these are done
  Purpose part_of_ = Purpose::call;
  Preparation preparation_;
};

}  // namespace gpucomm
