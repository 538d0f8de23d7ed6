// Decodings of one track that run as one piece of work: on a device each by itself is short.
#pragma once
#include <vector>

#include "engine/launches.h"
#include "engine/loans.h"

namespace gpucomm {

// A decoding waits for the next one of its track unless something else comes between them on the track, or
// another track needs it before. `before`: by launch, what it comes after.
void join_decodings(const std::vector<const Program*>& programs, std::vector<Launch>& list,
                    std::vector<Ends>& before);

}  // namespace gpucomm
