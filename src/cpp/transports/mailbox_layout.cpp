#include "transports/mailbox_layout.h"

#include <random>

#include "base/aligned.h"
#include "base/pages.h"
#include "transports/mailbox_entry.h"

namespace gpucomm {

// The slots of a channel. Point to point gets few: memory stays bounded, and its peak is a pair's, not all's.
static constexpr size_t kMostSlotBytes[kChannels] = {14 << 20, 2 << 20};

MailboxLayout::MailboxLayout(int world, int channel) {
  if (world < 1 || world > kMaxWorld)
    fail(ErrorKind::invalid_argument, "world must be in [1, ", kMaxWorld, "] for shared memory, got ", world);
  const size_t pairs = static_cast<size_t>(world) * (world - 1) / 2;
  while (pairs * slots * slot_bytes > kMostSlotBytes[channel] && slot_bytes > 4096)
    slots > 8 ? slots = 8 : slot_bytes /= 2;
  const auto page = [](size_t n) { return round_up(n, 4096); };
  rank_area = page(sizeof(RegionHeader));
  ring_area = rank_area + page(sizeof(RankArea)) * world;
  const size_t ring = page(kEntryBytes * kRingEntries + slots * sizeof(std::atomic<uint32_t>));
  slot_area = ring_area + ring * 2 * pairs;
  total = page_end(slot_area + pairs * slots * slot_bytes);
  for (int c = 0; c < channel; ++c) begin += MailboxLayout(world, c).total;
}

size_t mailbox_bytes(int world) {
  const MailboxLayout last(world, kChannels - 1);
  return last.begin + last.total;
}

void format_region(std::byte* base, int world, size_t heap_bytes) {
  for (int channel = 0; channel < kChannels; ++channel) {
    const MailboxLayout layout(world, channel);
    auto* header = reinterpret_cast<RegionHeader*>(base + layout.begin);
    header->magic = kMagic, header->world = world;
    header->heap_bytes = channel ? 0 : heap_bytes;
    std::random_device random;
    header->census.identity = uint64_t{random()} << 32 | random();
  }
}

}  // namespace gpucomm
