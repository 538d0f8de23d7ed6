#include "engine/arena_probe.h"

#include "engine/handle_text.h"

namespace gpucomm {
namespace {

// Another kind of device is for the call to refuse.
void open_probe(Device& device, const std::string& told) {
  HandleReader reader(told);
  if (reader.text() != kind_of(device)) return;
  device.close_memory(device.open_memory(reader.text()));
  device.end_event(device.open_event(reader.text()));
}

}  // namespace

std::string offer_probe(Device& device, Transport& transport, int rank, int) try {
  if (const std::string why = device.shares(); !why.empty()) return why;
  const Device::Probe probe = device.probe();
  HandleText text;
  text.put(kind_of(device)), text.put(probe.memory), text.put(probe.event);
  text.tell(transport.device_words()->pairs[rank][rank]);
  return "";
} catch (const Error& error) {
  return error.what();
}

std::string open_probes(Device& device, Transport& transport, int rank, int world) try {
  for (int peer = 0; peer < world; ++peer)
    if (peer != rank) open_probe(device, told_handles(transport.device_words()->pairs[peer][peer]));
  return "";
} catch (const Error& error) {
  return error.what();
}

}  // namespace gpucomm
