// What a rank has enqueued on a device, which may go on when the call that did so has returned.
#pragma once
#include <optional>

#include "engine/drivable.h"

namespace gpucomm {

class Enqueued {
 public:
  virtual ~Enqueued() = default;
  // This rank ends its communicator: nothing more is enqueued. May wait for what is, but not for long.
  virtual void leave() = 0;
  // The same after a fault: what is enqueued may wait for a rank that will never come.
  virtual void fault() { leave(); }
  // Waits, not for long, until no other rank reads what this one has sent: its process may end then. What was
  // not done by then, and will not be.
  virtual std::optional<Error> settle() { return {}; }
  // Whether its end depends on the other ranks, so that the host has to watch them.
  virtual bool watched() const { return false; }
  // Of a host that waits for it, or has waited until it was done: throws what has gone wrong. `waited`: it
  // has waited so long in vain.
  virtual void check(bool /*done*/, std::optional<Seconds> /*waited*/) {}
};

}  // namespace gpucomm
