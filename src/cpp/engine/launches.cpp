#include "engine/launches.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "base/error.h"

namespace gpucomm {
namespace {

constexpr int kStart = -1;  // what was there before the first launch

class Arranger {
 public:
  explicit Arranger(const std::vector<const Program*>& programs)
      : programs_(programs), done_(programs.size()), lanes_(programs.size()) {
    for (size_t r = 0; r < programs.size(); ++r) {
      done_[r].assign(programs[r]->instructions.size(), kUndone);
      for (int l = 0; l < programs[r]->lanes; ++l) lanes_[r].push_back({l});
    }
    match();
  }

  Launches run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t r = 0; r < lanes_.size(); ++r)
        for (size_t l = 0; l < lanes_[r].size(); ++l) moved |= advance(static_cast<int>(r), lanes_[r][l]);
    }
    for (size_t r = 0; r < lanes_.size(); ++r)
      for (size_t l = 0; l < lanes_[r].size(); ++l) GPUCOMM_CHECK(head(r, lanes_[r][l]) < 0);
    order();
    return std::move(result_);
  }

 private:
  static constexpr int kUndone = -2;
  struct Lane {
    int index = 0;
    size_t next = 0;
    int last = kStart;  // the launch that ended its last step
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

  bool ready(int rank, int step) const {
    for (int before : at(rank, step).after)
      if (done_[rank][before] == kUndone) return false;
    return true;
  }
  // What must be done before a step that its lane is at.
  void needs(int rank, int step, std::vector<int>& launches) {
    launches.push_back(lanes_[rank][at(rank, step).lane].last);
    for (int before : at(rank, step).after) launches.push_back(done_[rank][before]);
  }
  void finish(int rank, int step, int launch) {
    Lane& lane = lanes_[rank][at(rank, step).lane];
    done_[rank][step] = launch;
    ++lane.next, lane.last = launch;
  }

  bool advance(int rank, Lane& lane) {
    const int step = head(rank, lane);
    if (step < 0 || !ready(rank, step)) return false;
    const Instruction& in = at(rank, step);
    if (in.spared) return finish(rank, step, lane.last), true;
    if (in.kind == StepKind::send) return send(rank, step, lane);
    if (receives(in.kind)) return receive(rank, step, lane);
    std::vector<int> before;
    needs(rank, step, before);
    finish(rank, step, add(rank, step, std::move(before), {}));
    return true;
  }

  // Most end with their receive.
  bool send(int rank, int step, Lane& lane) {
    const auto spared = spared_.find({rank, step});
    if (at(rank, step).peers.empty())
      finish(rank, step, lane.last);
    else if (spared != spared_.end())
      finish(rank, step, spared->second);
    else
      return false;
    return true;
  }

  bool receive(int rank, int step, Lane& lane) {
    const Instruction& in = at(rank, step);
    if (in.peers.empty()) return finish(rank, step, lane.last), true;
    std::vector<Launch::Source> sources;
    for (size_t k = 0; k < in.peers.size(); ++k) {
      const int peer = in.peers[k], sent = comes_.at({rank, step, k});
      if (in.kind == StepKind::recv)
        if (const auto spared = spared_.find({peer, sent}); spared != spared_.end())
          return finish(rank, step, spared->second), true;  // the fold has written it here
      if (head(peer, lanes_[peer][at(peer, sent).lane]) != sent || !ready(peer, sent)) return false;
      sources.push_back({peer, sent, answered(rank, in, k, peer, sent)});
    }
    std::vector<int> before;
    needs(rank, step, before);
    for (const auto& source : sources) needs(source.rank, source.step, before);
    const int launch = add(rank, step, std::move(before), sources);
    for (size_t k = 0; k < sources.size(); ++k) {
      finish(sources[k].rank, sources[k].step, launch);
      if (sources[k].answered) spared_[{rank, in.answers[k]}] = launch;
    }
    finish(rank, step, launch);
    return true;
  }

  // Whether the result goes back to this source's rank, by a message that is then spared.
  bool answered(int rank, const Instruction& in, size_t k, int peer, int sent) const {
    if (in.kind != StepKind::recv_reduce || in.answers[k] < 0) return false;
    return at(peer, sent).answer == at(rank, in.answers[k]).number;
  }

  int add(int rank, int step, std::vector<int> before, std::vector<Launch::Source> sources) {
    const auto [found, added] = track_of_.try_emplace({rank, at(rank, step).lane}, result_.tracks.size());
    if (added) result_.tracks.push_back(rank);
    result_.list.push_back({.track = static_cast<int>(found->second),
                            .rank = rank,
                            .step = step,
                            .after = {},
                            .sources = std::move(sources)});
    before_.push_back(std::move(before));
    return static_cast<int>(result_.list.size()) - 1;
  }

  // Waits only for what its track has not waited for before.
  void order() {
    const size_t tracks = result_.tracks.size();
    std::vector<std::vector<int>> seen(tracks, std::vector<int>(tracks, kStart));
    for (size_t a = 0; a < result_.list.size(); ++a) {
      Launch& launch = result_.list[a];
      std::sort(before_[a].rbegin(), before_[a].rend());  // later ones first: they cover the earlier ones
      for (int earlier : before_[a]) {
        if (earlier == kStart) continue;
        Launch& other = result_.list[earlier];
        int& known = seen[launch.track][other.track];
        if (other.track == launch.track || known >= earlier) continue;
        known = earlier, other.record = true;
        launch.after.push_back(other.track);
      }
    }
  }

  const std::vector<const Program*>& programs_;
  std::vector<std::vector<int>> done_;  // by rank and step: the launch that ended it
  std::vector<std::vector<Lane>> lanes_;
  std::map<std::tuple<int, int, size_t>, int> comes_;  // the send, of a rank's receive and place
  std::map<std::pair<int, int>, int> spared_;          // sends: the fold that did their work
  std::map<std::pair<int, int>, size_t> track_of_;     // of a rank's lane
  std::vector<std::vector<int>> before_;               // by launch
  Launches result_;
};

}  // namespace

Launches arrange(const std::vector<const Program*>& programs) { return Arranger(programs).run(); }

}  // namespace gpucomm
