// Which program a call runs: chosen by the model and by what was learnt, compiled once, and remembered.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/program.h"
#include "engine/remembered.h"
#include "engine/tuning.h"

namespace gpucomm {

// Throws where a call's algorithm takes no codec and one is given, or the other way round.
void check_coding(const Shape& wish);

class Programs {
 public:
  // `attaches`: as Transport::attaches.
  Programs(std::vector<int> nodes, int rank, bool attaches)
      : nodes_(std::move(nodes)), rank_(rank), attaches_(attaches) {}

  // Throws what is wrong with the wish.
  void check(const Shape& wish) const;
  // What is learnt of calls like this one; null where all of it is asked for or learning is off. Throws what
  // is wrong with the wish.
  const std::shared_ptr<Tuning>& tuning(const Shape& wish);
  // `tuning`, `place`: whose candidate is taken; without, what the wish asks for.
  std::shared_ptr<const Program> get(const Shape& wish, const Tuning* tuning, int place);
  // The same, of the wish that tuning() was asked of last.
  const std::shared_ptr<const Program>& get(int place);

  const Links& links() const { return links_; }
  // What codecs cost, by kind; the same on all ranks.
  bool coding_known(const Codec& codec) const { return codings_.contains(codec.kind()); }
  void set_coding(const Codec& codec, const Coding& coding) { codings_[codec.kind()] = coding; }
  // By the model, the cheapest first. Of arrays of a device: as they pass through host memory or over NCCL.
  const std::vector<Choice>& candidates(const Shape& shape);
  // Whether the model says that a call with a codec, after a small one to agree on it, is slower than
  // without.
  bool refuses_coding(const Shape& wish);
  // Seconds that the ranks take to agree on one number, by the model.
  double agreement_time();
  // The candidate that a call takes which names a codec, where that one does without it and nothing is tried:
  // its caller may make that call in its place. This counts as the call then.
  std::optional<Choice> settled_without_codec(const Shape& wish);
  // Forgets what was learnt.
  void set_links(const Links& links);
  // From here on the model alone chooses, by typical figures unless links are given.
  void freeze(bool typical);
  bool frozen() const { return frozen_; }

  struct Learnt {
    std::vector<Choice> candidates;
    bool both_ways = false;
    double coded_counts = 1;
    Tuning::Agreements agreements;
    Choice taken;
  };
  std::map<Kind, Learnt> learnt() const;
  // Decides as another run did, where it says so.
  void replay(std::map<Kind, Learnt> learnt);

 private:
  void forget();
  bool goes_both_ways(const Shape& wish) const;
  Kind learning_of(const Shape& wish);
  std::shared_ptr<const Program> compiled(Shape shape);
  std::shared_ptr<const Program> made(const Shape& wish, const Tuning* tuning, int place);
  std::optional<bool> replayed_refusal(const Shape& wish) const;

  std::vector<int> nodes_;
  int rank_;
  bool attaches_;
  Links links_;
  bool frozen_ = false;
  std::map<std::string, Coding> codings_;
  Choices choices_;
  std::map<DeviceWay, Choices> device_choices_;
  std::optional<double> agreement_s_;  // of a small call, by the model
  std::map<Kind, std::shared_ptr<Tuning>> tunings_;
  std::map<Kind, Learnt> replayed_;
  Remembered<std::string, std::shared_ptr<const Program>> programs_;
  // The same call again costs one comparison.
  Shape last_wish_;
  std::shared_ptr<Tuning> last_tuning_;
  std::shared_ptr<const Program> last_program_;
  uint64_t last_version_ = 0;
  int last_place_ = 0;
};

}  // namespace gpucomm
