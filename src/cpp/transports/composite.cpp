// mpi, c10d: shared memory inside a node, a wire between nodes; or the wire alone.
#include <algorithm>

#include "transports/messages.h"

namespace gpucomm {
namespace {

class Composite : public Transport {
 public:
  // `node`: the transport of this node's ranks, which are `locals` in its order.
  Composite(std::unique_ptr<Transport> node, const std::vector<int>& locals, std::unique_ptr<Messages> wire,
            int world)
      : node_(std::move(node)), wire_(std::move(wire)), place_(world, -1) {
    for (size_t i = 0; i < locals.size(); ++i) place_[locals[i]] = static_cast<int>(i);
  }

  bool send(int peer, uint64_t tag, const std::byte* data, size_t bytes, SendProgress& progress) override {
    return of(peer).send(number(peer), tag, data, bytes, progress);
  }
  bool flush(int peer) override { return wire_->flush(peer); }
  const Chunk* peek(int peer) override { return of(peer).peek(number(peer)); }
  void consume(int peer) override { of(peer).consume(number(peer)); }
  void keep(int peer, const Kept& kept) override { of(peer).keep(number(peer), kept); }

  bool fetch(int peer, std::byte* to, CopyBytes copy) override {
    return of(peer).fetch(number(peer), to, copy);
  }
  bool answer(int peer, const std::byte* from) override { return of(peer).answer(number(peer), from); }
  std::shared_ptr<Heap> heap() override { return node_->heap(); }
  std::string heap_note() const override { return node_->heap_note(); }
  bool read_in_place() override { return node_->read_in_place(); }
  std::string reader(int rank) const override { return of(rank).reader(number(rank)); }
  void withdraw() override { node_->withdraw(), wire_->withdraw(); }

  // Asleep on the node's bell: the wire has none, so it is looked at now and then.
  uint32_t begin_sleep() override { return node_->begin_sleep(); }
  void sleep(uint32_t ticket, std::chrono::microseconds at_most) override {
    node_->sleep(ticket, std::min(at_most, wire_->nap()));
  }
  void end_sleep() override { node_->end_sleep(); }
  void wake_self() override { node_->wake_self(); }

  void announce(const CallRecord& record) override { node_->announce(record), wire_->announce(record); }
  void complete(uint64_t sequence) override { node_->complete(sequence), wire_->complete(sequence); }
  CallRecord call(int rank, uint64_t sequence) const override {
    return of(rank).call(number(rank), sequence);
  }
  uint64_t arrived(int rank) const override { return of(rank).arrived(number(rank)); }
  uint64_t completed(int rank) const override { return of(rank).completed(number(rank)); }
  void look() override { wire_->look(); }
  bool show() override { return wire_->show(); }
  void refuse(const Refusal& refusal) override { node_->refuse(refusal), wire_->refuse(refusal); }
  Refusal refusal(int rank) const override { return of(rank).refusal(number(rank)); }
  void tell(int peer, uint64_t word) override { of(peer).tell(number(peer), word); }
  uint64_t told(int peer) override { return of(peer).told(number(peer)); }
  void leave() override { wire_->leave(), node_->leave(); }
  std::string gone(int rank) const override { return of(rank).gone(number(rank)); }
  std::string describe(int rank) const override { return of(rank).describe(number(rank)); }
  void poison(const Poison& poison) override { node_->poison(poison), wire_->poison(poison); }
  bool poisoned() const override { return node_->poisoned() || wire_->poisoned(); }
  Poison poison() const override { return node_->poisoned() ? node_->poison() : wire_->poison(); }
  Counters counters() const override {
    Counters all = node_->counters();
    return all += wire_->counters();
  }

 private:
  Transport& of(int rank) const { return place_[rank] < 0 ? *wire_ : *node_; }
  int number(int rank) const { return place_[rank] < 0 ? rank : place_[rank]; }

  std::unique_ptr<Transport> node_;
  std::unique_ptr<Messages> wire_;
  std::vector<int> place_;  // of each rank in the node's transport; -1: on another node
};

std::unique_ptr<Transport> open(const Endpoint& endpoint) {
  if (!endpoint.wire) fail(ErrorKind::invalid_argument, "transports between nodes need a wire");
  auto wire = std::make_unique<Messages>(endpoint.wire, endpoint.rank, endpoint.wire_ranks, endpoint.context,
                                         endpoint.channel);
  std::vector<int> locals;
  for (int rank = 0; rank < endpoint.world; ++rank)
    if (endpoint.nodes[rank] == endpoint.nodes[endpoint.rank]) locals.push_back(rank);
  if (endpoint.fd < 0 || locals.size() == 1) return wire;
  Endpoint inside;
  inside.rank = static_cast<int>(std::find(locals.begin(), locals.end(), endpoint.rank) - locals.begin());
  inside.world = static_cast<int>(locals.size());
  inside.fd = endpoint.fd, inside.channel = endpoint.channel;
  return std::make_unique<Composite>(Registry<TransportEntry>::find("shm").open(inside), locals,
                                     std::move(wire), endpoint.world);
}

const Registry<TransportEntry>::Add add_mpi{
    "mpi",
    {"processes of several nodes: MPI between nodes, shared memory inside", "gpucomm[mpi]: mpi4py, any MPI",
     open}};
const Registry<TransportEntry>::Add add_c10d{
    "c10d",
    {"processes of several nodes: torch.distributed's Gloo between nodes, shared memory inside", "PyTorch",
     open}};

}  // namespace
}  // namespace gpucomm
