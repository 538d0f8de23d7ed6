// Copies of elements and messages.
#pragma once
#include <cstddef>

namespace gpucomm {

// As memcpy, which older glibc does by `rep movsb` from 2 KiB on. AMD's Zen 3 does that at 2 GB/s in place of
// 40 where the target lies up to 31 bytes further in its page than the source (glibc bug 30994, of Zen 4
// too), as NumPy's arrays do beside a slot. There it is a loop.
void copy_bytes(void* to, const void* from, size_t bytes);

// That loop, for 32 bytes and more. False: this processor cannot run it.
bool copy_by_loop(void* to, const void* from, size_t bytes);

// As memcpy, past the caches (non-temporal stores): a line need not be read from memory to be written there.
// Slower where the caches could have held what is written.
void copy_non_temporal(void* to, const void* from, size_t bytes);

using CopyBytes = void (*)(void* to, const void* from, size_t bytes);

}  // namespace gpucomm
