// local: ranks are threads of one process; mailboxes in its own memory.
#include <sys/mman.h>

#include "transports/mailbox.h"
#include "transports/regions.h"

namespace gpucomm {

struct AnonymousRegion : Region {
  explicit AnonymousRegion(size_t bytes) {
    void* p =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return;
    base = static_cast<std::byte*>(p), size = bytes;
    madvise(p, bytes, MADV_DONTDUMP);
    common = &common_;
  }
  ~AnonymousRegion() override {
    if (base) munmap(base, size);
  }
  void unback(size_t offset, size_t bytes) override { madvise(base + offset, bytes, MADV_DONTNEED); }

 private:
  Common common_;
};

std::shared_ptr<Region> make_local_region(int world, std::optional<size_t> heap_bytes) {
  const size_t mailboxes = mailbox_bytes(world);
  for (const size_t heap : heap_sizes(world, heap_bytes)) {
    auto region = std::make_shared<AnonymousRegion>(mailboxes + heap * world);
    if (!region->base) continue;
    format_region(region->base, world, heap);
    return region;
  }
  fail(ErrorKind::unavailable, "no memory for a region of ", mailboxes, " bytes");
}

static std::unique_ptr<Transport> open_local(const Endpoint& endpoint) {
  if (!endpoint.region)
    fail(ErrorKind::invalid_argument, "transport 'local' needs a region shared by its ranks");
  return std::make_unique<Mailbox>(endpoint.region, endpoint.rank, endpoint.world, endpoint.channel);
}

static const Registry<TransportEntry>::Add add{
    "local",
    {"ranks are threads of one process: tests, notebooks, several ranks on one device", "nothing",
     open_local}};

}  // namespace gpucomm
