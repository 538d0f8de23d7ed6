// Copies of elements and messages.
#pragma once
#include <cstddef>

namespace gpucomm {

// As memcpy, which glibc before 2.40 does by `rep movsb` from 4 KiB on. AMD's Zen 3 and Zen 4 do that at 2
// GB/s in place of 40 where the target lies up to 31 bytes further in its page than the source: as NumPy's
// arrays do beside a slot. There it is a loop.
void copy_bytes(void* to, const void* from, size_t bytes);

// That loop, for 32 bytes and more. False: this processor cannot run it.
bool copy_by_loop(void* to, const void* from, size_t bytes);

}  // namespace gpucomm
