#include "engine/fate.h"

#include <algorithm>
#include <new>
#include <stdexcept>

namespace gpucomm {

void Fate::fail(const Error& error) {
  {
    std::lock_guard lock(mutex_);
    if (!fault_) fault_ = error;
  }
  closed_.store(true, std::memory_order_release);
  control_->poison({rank_, error.kind, error.what()});
}

void Fate::abandon() const {
  control_->poison({rank_, ErrorKind::peer_lost, "closed its communicator with calls under way"});
}

bool Fate::failed() const {
  std::lock_guard lock(mutex_);
  return fault_.has_value();
}

void Fate::check_open() const {
  if (closed()) throw closed_error();
}

Error Fate::closed_error() const {
  std::lock_guard lock(mutex_);
  const std::string why = fault_ ? concat(" after a fault: ", fault_->what()) : "";
  return Error(ErrorKind::closed, concat("this communicator is closed", why, where()));
}

static constexpr std::string_view kReports = " reports: ";

// Whether a rank has passed on what it got of another: "rank 2 reports: ...".
static bool is_report(std::string_view text) {
  constexpr std::string_view kRank = "rank ";
  const size_t end = std::min(text.find_first_not_of("0123456789", kRank.size()), text.size());
  return text.starts_with(kRank) && text.substr(end).starts_with(kReports);
}

// Throws the fault that another rank has reported.
static void check_poison(const Transport& transport) {
  if (!transport.poisoned()) return;
  const Poison poison = transport.poison();
  const bool shared = poison.kind == ErrorKind::mismatch;  // its text names both sides already
  const bool told = shared || is_report(poison.text);
  fail(poison.kind, told ? "" : concat("rank ", poison.rank, kReports), poison.text);
}

void fail_lost(const Transport& transport, int peer, const std::string& why, int rank, int world,
               const std::string& waits) {
  check_poison(transport);  // it may have gone because another has, and have told it since we looked
  fail(ErrorKind::peer_lost, "rank ", peer, " ", why, " while rank ", rank, " of ", world, " waits ", waits);
}

std::string stopped_ranks(const Transport& transport, int world, int but) {
  std::string clauses;
  for (int rank = 0; rank < world; ++rank)
    if (const std::string state = transport.describe(rank); rank != but && state.ends_with(", stopped"))
      clauses += concat("; rank ", rank, " (", state, ") does nothing");
  return clauses;
}

void Fate::check_read_in_place(Transport& transport) const {
  if (!transport.read_in_place()) return;
  std::atomic_thread_fence(std::memory_order_acquire);
  check_poison();
}

void Fate::check_poison() const { gpucomm::check_poison(*control_); }

std::optional<std::string> Fate::fault() const {
  {
    std::lock_guard lock(mutex_);
    if (fault_) return fault_->what();
  }
  try {
    if (!control_->poisoned()) return {};
    return control_->poison().text;
  } catch (const Error& error) {  // of the way by which others tell; who only asks gets an answer
    return error.what();
  }
}

Error Fate::error_of(const std::exception& exception) const {
  if (const auto* error = dynamic_cast<const Error*>(&exception)) return *error;
  const bool memory =
      dynamic_cast<const std::bad_alloc*>(&exception) || dynamic_cast<const std::length_error*>(&exception);
  const char* const what = exception.what();
  return {ErrorKind::unavailable,
          concat(memory ? concat("no memory for what a call needs (", what, ")") : what, where())};
}

void Fate::check_peer(int peer, const std::string& waiting) const {
  const std::string why = control_->gone(peer);
  if (!why.empty()) fail_lost(*control_, peer, why, rank_, world_, "in " + waiting);
}

}  // namespace gpucomm
