// Coded pieces that are read where they were encoded, by steps of whichever rank, in place of copies: who
// will still read a slot, and what has.
#pragma once
#include <algorithm>
#include <map>
#include <utility>

#include "engine/launches.h"

namespace gpucomm {

using Ends = std::map<int, int>;  // by track: the latest launch

inline void add_ends(Ends& ends, const Ends& more) {
  for (const auto& [track, launch] : more) {
    int& latest = ends.try_emplace(track, launch).first->second;
    latest = std::max(latest, launch);
  }
}

class Loans {
 public:
  using Slot = std::pair<int, int>;  // rank, and which of its coded ones
  struct Piece {
    Launch::Source sent;  // a send out of the slot
    Slot slot;
  };

  void lend(const Piece& piece, int rank, int step) {
    lent_[{rank, step}] = piece;
    ++slots_[piece.slot].readers;
  }
  // What a step reads elsewhere; nullptr: nothing.
  const Piece* lent_to(int rank, int step) const {
    const auto found = lent_.find({rank, step});
    return found == lent_.end() ? nullptr : &found->second;
  }
  // If anything was lent to the step, `reader` has read it.
  void give_back(int rank, int step, const Ends& reader) {
    const Piece* piece = lent_to(rank, step);
    if (!piece) return;
    Reading& reading = slots_[piece->slot];
    --reading.readers;
    add_ends(reading.read, reader);
  }
  // Whether a slot may be written as far as others read it.
  bool returned(const Slot& slot) const {
    const auto found = slots_.find(slot);
    return found == slots_.end() || !found->second.readers;
  }
  // Forgets what has read the slot: it is written after that.
  Ends end(const Slot& slot) { return std::exchange(slots_[slot].read, {}); }

 private:
  struct Reading {
    int readers = 0;  // to come
    Ends read;
  };
  std::map<std::pair<int, int>, Piece> lent_;  // by rank and step
  std::map<Slot, Reading> slots_;
};

}  // namespace gpucomm
