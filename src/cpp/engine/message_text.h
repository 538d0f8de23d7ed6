// What the two ends of a message say of it, to each other and to their users.
#pragma once
#include <cstdint>
#include <string>

#include "engine/message.h"
#include "transports/transport.h"

namespace gpucomm {

// Says what the message is, so that a receiver that expects another one can name it.
uint64_t tag_of(const Message& message);
// "10 float32", of a tag.
std::string elements(uint64_t tag);
// One number for each end of each message of a rank.
uint64_t end_of(bool sending, uint64_t number, int peer);
// "send #3 to rank 0", and "send #3 to rank 0 (10 float32)".
std::string describe(bool sending, uint64_t number, int peer);
std::string describe(const Message& message);
// The latter from the record of a send or receive.
std::string describe_message(const CallRecord& record);

}  // namespace gpucomm
