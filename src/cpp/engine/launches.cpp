#include "engine/launches.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "engine/joining.h"
#include "engine/loans.h"
#include "engine/side_by_side.h"

namespace gpucomm {
namespace {

class Arranger {
 public:
  explicit Arranger(const std::vector<const Program*>& programs)
      : programs_(programs), ends_(programs.size()), lanes_(programs.size()) {
    for (size_t r = 0; r < programs.size(); ++r) {
      ends_[r].resize(programs[r]->instructions.size());
      for (int l = 0; l < programs[r]->lanes; ++l) lanes_[r].push_back({l});
    }
    match();
  }

  Launches run(bool on_one_device) {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t r = 0; r < lanes_.size(); ++r)
        for (Lane& lane : lanes_[r]) moved |= advance(static_cast<int>(r), lane);
    }
    for (size_t r = 0; r < lanes_.size(); ++r)
      for (const Lane& lane : lanes_[r]) GPUCOMM_CHECK(head(r, lane) < 0);
    if (on_one_device) {
      put_side_by_side(programs_, result_, before_);
    } else {
      join_decodings(programs_, result_.list, before_);
      order();
    }
    return std::move(result_);
  }

 private:
  struct Lane {
    int index = 0;
    size_t next = 0;
    Ends last;  // of its last step
  };

  const Instruction& at(int rank, int step) const { return programs_[rank]->instructions[step]; }
  // The step that a lane is at; -1 behind its last one.
  int head(int rank, const Lane& lane) const {
    const auto& steps = programs_[rank]->lane_steps[lane.index];
    return lane.next < steps.size() ? steps[lane.next] : -1;
  }

  // The k-th send to a peer meets its k-th step that receives from us.
  void match() {
    std::map<std::pair<int, int>, std::vector<int>> sends;
    std::map<std::pair<int, int>, std::vector<std::pair<int, size_t>>> receives;
    for (int r = 0; r < world(); ++r)
      for (int i = 0; i < static_cast<int>(programs_[r]->instructions.size()); ++i) {
        const Instruction& in = at(r, i);
        for (size_t k = 0; k < in.peers.size(); ++k) {
          if (in.kind == StepKind::send)
            sends[{r, in.peers[k]}].push_back(i);
          else
            receives[{in.peers[k], r}].push_back({i, k});
        }
      }
    for (const auto& [pair, steps] : sends) {
      const auto& there = receives[pair];
      GPUCOMM_CHECK(there.size() == steps.size());
      for (size_t n = 0; n < steps.size(); ++n) {
        comes_[{pair.second, there[n].first, there[n].second}] = steps[n];
      }
    }
  }

  int world() const { return static_cast<int>(programs_.size()); }

  Lane& lane_of(int rank, int step) { return lanes_[rank][at(rank, step).lane]; }
  bool ready(int rank, int step) const {
    const Instruction& in = at(rank, step);
    return std::all_of(in.after.begin(), in.after.end(),
                       [&](int before) { return ends_[rank][before].has_value(); });
  }
  // What must be done before a step that its lane is at.
  Ends needs(int rank, int step) {
    Ends ends = lane_of(rank, step).last;
    for (int before : at(rank, step).after) add_ends(ends, *ends_[rank][before]);
    return ends;
  }
  void finish(int rank, int step, const Ends& ends) {
    Lane& lane = lane_of(rank, step);
    ends_[rank][step] = lane.last = ends;
    ++lane.next;
  }
  // A message that a fold has taken the place of: done with it, and with what its lane did before.
  void finish_spared(int rank, int step, Ends ends) {
    add_ends(ends, lane_of(rank, step).last);
    finish(rank, step, ends);
  }

  bool advance(int rank, Lane& lane) {
    const int step = head(rank, lane);
    if (step < 0 || !ready(rank, step)) return false;
    const Instruction& in = at(rank, step);
    if (in.spared) return finish(rank, step, lane.last), true;
    if (in.kind == StepKind::send) return send(rank, step, lane);
    if (receives(in.kind)) return receive(rank, step, lane);
    if (!loans_.returned(written(rank, step))) return false;
    std::vector<Launch::Source> sources;
    if (const auto* piece = loans_.lent_to(rank, step)) sources.push_back(piece->sent);
    const Ends launch = add(rank, step, needs(rank, step), std::move(sources));
    loans_.give_back(rank, step, launch);
    finish(rank, step, launch);
    return true;
  }

  // The slot that a step writes a coded piece to.
  Loans::Slot written(int rank, int step) const {
    const Instruction& in = at(rank, step);
    const Place& target = in.encodes < 0 ? in.target : at(rank, in.encodes).target;
    return {rank, target.space == Space::coded ? target.slot : -1};
  }

  // Most end with their receive.
  bool send(int rank, int step, Lane& lane) {
    if (at(rank, step).peers.empty()) return finish(rank, step, lane.last), true;
    const auto spared = spared_.find({rank, step});
    if (spared == spared_.end()) return false;
    return finish_spared(rank, step, spared->second), true;
  }

  bool receive(int rank, int step, Lane& lane) {
    const Instruction& in = at(rank, step);
    if (in.peers.empty()) return finish(rank, step, lane.last), true;
    std::vector<Launch::Source> sources;
    for (size_t k = 0; k < in.peers.size(); ++k) {
      const int peer = in.peers[k], sent = comes_.at({rank, step, k});
      if (in.kind == StepKind::recv)
        if (const auto spared = spared_.find({peer, sent}); spared != spared_.end())
          return finish_spared(rank, step, spared->second), true;  // the fold has written it here
      if (head(peer, lane_of(peer, sent)) != sent || !ready(peer, sent)) return false;
      sources.push_back({peer, sent, answered(rank, in, k, peer, sent)});
    }
    if (in.used_by >= 0) return borrow(rank, step, sources[0]), true;
    return take(rank, step, sources);
  }

  bool take(int rank, int step, const std::vector<Launch::Source>& sources) {
    if (!loans_.returned(written(rank, step))) return false;
    const Instruction& in = at(rank, step);
    Ends before = needs(rank, step);
    std::vector<Launch::Source> lie;
    for (const auto& source : sources) {
      add_ends(before, needs(source.rank, source.step));
      lie.push_back(piece(source).sent);
    }
    const Ends launch = add(rank, step, std::move(before), std::move(lie));
    for (size_t k = 0; k < sources.size(); ++k) {
      finish(sources[k].rank, sources[k].step, launch);
      loans_.give_back(sources[k].rank, sources[k].step, launch);
      if (sources[k].answered) spared_[{rank, in.answers[k]}] = launch;
    }
    finish(rank, step, launch);
    return true;
  }

  // Who uses the piece here reads it where it was encoded.
  void borrow(int rank, int step, const Launch::Source& sent) {
    const Loans::Piece lent = piece(sent);
    for (const int user : {at(rank, step).used_by, at(rank, step).sent_by})
      if (user >= 0) loans_.lend(lent, rank, user);
    Ends ends = needs(sent.rank, sent.step);
    loans_.give_back(sent.rank, sent.step, {});
    finish(sent.rank, sent.step, ends);
    add_ends(ends, lane_of(rank, step).last);
    finish(rank, step, ends);
  }
  // Where it lies that a send sends.
  Loans::Piece piece(const Launch::Source& sent) const {
    const auto* lent = loans_.lent_to(sent.rank, sent.step);
    return lent ? *lent : Loans::Piece{sent, {sent.rank, at(sent.rank, sent.step).source.slot}};
  }

  // Whether the result goes back to this source's rank, by a message that is then spared.
  bool answered(int rank, const Instruction& in, size_t k, int peer, int sent) const {
    if (in.kind != StepKind::recv_reduce || in.answers[k] < 0) return false;
    return at(peer, sent).answer == at(rank, in.answers[k]).number;
  }

  Ends add(int rank, int step, Ends before, std::vector<Launch::Source> sources) {
    const auto [found, added] = track_of_.try_emplace({rank, at(rank, step).lane}, result_.tracks.size());
    if (added) result_.tracks.push_back(rank);
    const int track = static_cast<int>(found->second), launch = static_cast<int>(result_.list.size());
    result_.list.push_back({track, {{rank, step, std::move(sources)}}});
    add_ends(before, loans_.end(written(rank, step)));
    before_.push_back(std::move(before));
    return {{track, launch}};
  }

  // Waits only for what its track has not waited for before.
  void order() {
    const size_t tracks = result_.tracks.size();
    std::vector<std::vector<int>> seen(tracks, std::vector<int>(tracks, -1));
    for (size_t a = 0; a < result_.list.size(); ++a) {
      Launch& launch = result_.list[a];
      for (const auto& [track, earlier] : before_[a]) {
        int& known = seen[launch.track][track];
        if (track == launch.track || known >= earlier) continue;
        known = earlier, result_.list[earlier].record = true;
        launch.after.push_back(track);
      }
    }
  }

  const std::vector<const Program*>& programs_;
  std::vector<std::vector<std::optional<Ends>>> ends_;  // by rank and step; none: not yet done
  std::vector<std::vector<Lane>> lanes_;
  std::map<std::tuple<int, int, size_t>, int> comes_;  // the send, of a rank's receive and place
  std::map<std::pair<int, int>, Ends> spared_;         // sends: the fold that did their work
  Loans loans_;
  std::map<std::pair<int, int>, size_t> track_of_;  // of a rank's lane
  std::vector<Ends> before_;                        // by launch
  Launches result_;
};

}  // namespace

Launches arrange(const std::vector<const Program*>& programs, bool on_one_device) {
  return Arranger(programs).run(on_one_device);
}

}  // namespace gpucomm
