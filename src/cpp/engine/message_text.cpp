#include "engine/message_text.h"

#include <cstdlib>

namespace gpucomm {
namespace {

constexpr int kNumberShift = 48, kDtypeShift = 43;
constexpr uint64_t kOnDevice = uint64_t{1} << 42, kOverNccl = kOnDevice >> 1, kCountMask = kOverNccl - 1;
static_assert(kDtypes <= 1 << (kNumberShift - kDtypeShift));

}  // namespace

uint64_t tag_of(const Message& m) {
  return m.number << kNumberShift | static_cast<uint64_t>(m.dtype) << kDtypeShift |
         (m.device ? kOnDevice : 0) | (m.over_nccl ? kOverNccl : 0) | (m.count & kCountMask);
}

std::string elements(uint64_t tag) {
  const auto dtype = static_cast<Dtype>(tag >> kDtypeShift & ((1 << (kNumberShift - kDtypeShift)) - 1));
  return concat(tag & kCountMask, " ", name_of(dtype), tag & kOnDevice ? " on a device" : "",
                tag & kOverNccl ? " over NCCL" : "");
}

std::string describe(bool sending, uint64_t number, int peer) {
  return concat(sending ? "send #" : "recv #", number, sending ? " to rank " : " from rank ", peer);
}

std::string describe(const Message& m) {
  return concat(describe(m.sending, m.number, m.peer), " (", elements(tag_of(m)), ")");
}

uint64_t end_of(bool sending, uint64_t number, int peer) { return (number << 32 | peer << 1) + sending; }

std::string describe_message(const CallRecord& r) {
  return concat(describe(r.message > 0, std::abs(r.message), r.root), " (", r.count, " ",
                name_of(static_cast<Dtype>(r.dtype)), r.on_device ? " on a device" : "",
                r.on_device == 2 ? " over NCCL)" : ")");
}

}  // namespace gpucomm
