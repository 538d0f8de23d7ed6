#include "engine/programs.h"

#include <algorithm>

#include "engine/nccl_native.h"

namespace gpucomm {
namespace {

// Of codecs that were not timed: seconds a byte, of a busy core.
constexpr Coding kTypicalCoding{1, 2.5e-10, 2.5e-10};

std::string key_of(const Shape& s) {
  return concat(static_cast<int>(s.collective), ' ', static_cast<int>(s.op), ' ', static_cast<int>(s.dtype),
                ' ', s.count, ' ', s.root, ' ', s.in_place, ' ', s.segments, ' ', static_cast<int>(s.purpose),
                ' ', s.algorithm, ' ', s.codec ? s.codec->spec() : "", ' ', s.asked ? s.asked->spec() : "",
                ' ', s.tells_error, ' ', static_cast<int>(s.private_way), ' ', place_of(s), key_of_counts(s),
                s.before ? key_of(*s.before) : "");
}

}  // namespace

void check_coding(const Shape& wish) {
  const bool coded = wish.codec != nullptr, named = wish.algorithm != "auto";
  if (named ? Registry<Algorithm>::find(wish.algorithm).coded == coded : !coded) return;
  const std::string fitting = offering(wish.collective, coded);
  if (fitting.empty())
    fail(ErrorKind::invalid_argument, "no algorithm for ", name_of(wish.collective), " takes a codec, got ",
         wish.codec->spec());
  if (named)
    fail(ErrorKind::invalid_argument, "algorithm '", wish.algorithm, coded ? "' takes no" : "' needs a",
         " codec for ", name_of(wish.collective), "; those that ", coded ? "do: " : "need none: ", fitting);
}

void Programs::check(const Shape& wish) const {
  if (wish.algorithm == kNative) return check_native(wish);
  if (wish.algorithm != "auto" && !Registry<Algorithm>::find(wish.algorithm).offers(wish.collective))
    build_plan(wish.algorithm, {wish.collective});  // throws the sentence
  check_coding(wish);
}

const std::shared_ptr<Tuning>& Programs::tuning(const Shape& wish) {
  if (last_program_ && wish == last_wish_) return last_tuning_;
  check(wish);
  last_wish_ = wish;
  last_program_.reset(), last_tuning_.reset();
  if (wish.algorithm != "auto" || nodes_.size() == 1 || frozen_) return last_tuning_;
  const Kind kind = learning_of(wish);
  auto& tuning = tunings_[kind];
  if (!tuning) {
    const auto replayed = replayed_.find(kind);
    const Learnt from = replayed == replayed_.end() ? Learnt{candidates(wish), goes_both_ways(wish),
                                                             coded_counts(wish.codec.get(), links_)}
                                                    : replayed->second;
    tuning = std::make_shared<Tuning>(from.candidates, from.both_ways, most_bytes(kind), from.coded_counts);
    tuning->replay(from.agreements);
  }
  return last_tuning_ = tuning;
}

const std::shared_ptr<const Program>& Programs::get(int place) {
  const uint64_t version = last_tuning_ ? last_tuning_->version() : 0;
  if (!last_program_ || version != last_version_ || place != last_place_)
    last_program_ = made(last_wish_, last_tuning_.get(), place), last_version_ = version, last_place_ = place;
  return last_program_;
}

std::shared_ptr<const Program> Programs::get(const Shape& wish, const Tuning* tuning, int place) {
  return tuning == last_tuning_.get() && wish == last_wish_ ? get(place) : made(wish, tuning, place);
}

std::shared_ptr<const Program> Programs::made(const Shape& wish, const Tuning* tuning, int place) {
  Shape shape = wish;
  if (tuning) {
    const Choice& choice = tuning->at(place);
    shape.algorithm = choice.algorithm, shape.segments = choice.segments, shape.private_way = choice.way;
  } else if (shape.algorithm == "auto" && nodes_.size() == 1) {
    shape.algorithm = "direct", shape.codec.reset();
  }
  return compiled(std::move(shape));
}

const std::vector<Choice>& Programs::candidates(const Shape& shape) {
  Coding coding;
  if (shape.codec) {
    const auto known = codings_.find(shape.codec->kind());
    coding = known == codings_.end() ? kTypicalCoding : known->second;
    if (shape.on_device) coding = {};  // it codes much faster than these links are
    coding.ratio = shape.codec->bytes_a_byte(shape.dtype);
  }
  if (shape.on_device) {
    const bool staged = shape.way == DeviceWay::staged;
    const Links links = staged ? links_of_staged(links_) : links_of_nccl(nodes_);
    return device_choices_[shape.way].find(shape, nodes_, links, coding);
  }
  return choices_.find(shape, nodes_, links_, coding);
}

// Whether its messages may be read where they lie in private memory.
bool Programs::goes_both_ways(const Shape& wish) const {
  constexpr size_t kLeast = 32 << 10;
  return attaches_ && !wish.on_device && most_bytes(kind_of(wish)) >= kLeast;
}

// What is learnt together: where a codec is not tried, or was not in the run that is replayed, with the calls
// that name none.
Kind Programs::learning_of(const Shape& wish) {
  const Kind kind = kind_of(wish);
  if (!wish.codec || replayed_.contains(kind)) return kind;
  Shape without = wish;
  without.codec.reset();
  const Kind dense = kind_of(without);
  if (replayed_.contains(dense)) return dense;
  const std::vector<Choice>& tried = candidates(wish);
  return std::any_of(tried.begin(), tried.end(), codes) ? kind : dense;
}

// What a log says of such a call, with its codec agreed on or without one.
std::optional<bool> Programs::replayed_refusal(const Shape& wish) const {
  const std::string agreed = wish.codec->kind(), asked = agreed.substr(0, agreed.find(','));
  Kind kind = kind_of(wish);
  for (const auto& [known, learnt] : replayed_) {
    kind.codec = known.codec, kind.tells_error = known.tells_error;
    if (known == kind && (kind.codec.empty() || kind.codec.starts_with(asked))) return kind.codec.empty();
  }
  return {};
}

std::optional<Choice> Programs::settled_without_codec(const Shape& wish) {
  if (wish.algorithm != "auto" || nodes_.size() == 1) return {};
  const auto tuning = this->tuning(wish);
  if (tuning && !tuning->rests()) return {};
  const Choice& taken = tuning ? tuning->at(0) : candidates(wish)[0];
  if (codes(taken)) return {};
  if (tuning) tuning->issue();
  return taken;
}

bool Programs::refuses_coding(const Shape& wish) {
  if (const auto told = replayed_refusal(wish)) return *told;
  LeastCosts least;
  least.add(candidates(wish));
  return least.dense <= least.coded + agreement_time();
}

double Programs::agreement_time() {
  const Shape call = largest_of(1);
  const PlanRequest request{.collective = call.collective, .world = static_cast<int>(nodes_.size())};
  if (!agreement_s_) agreement_s_ = total_time(call.algorithm, request, size_of(call.dtype), links_);
  return *agreement_s_;
}

std::shared_ptr<const Program> Programs::compiled(Shape shape) {
  const std::string key = key_of(shape);
  if (const auto* known = programs_.find(key)) return *known;
  if (shape.algorithm == "auto" || !shape.segments) {
    const Choice& choice = candidates(shape).front();
    shape.algorithm = choice.algorithm, shape.segments = choice.segments;
  }
  const bool native = shape.algorithm == kNative;
  if (!native && !Registry<Algorithm>::find(shape.algorithm).coded) shape.codec.reset();
  const int world = static_cast<int>(nodes_.size());
  auto program =
      std::make_shared<const Program>(native ? opaque(shape, rank_, world) : compile(shape, nodes_, rank_));
  const size_t instructions = program->instructions.size();
  return programs_.add(key, std::move(program), instructions);
}

void Programs::forget() {
  choices_.clear(), device_choices_.clear(), programs_.clear(), tunings_.clear();
  last_program_.reset(), last_tuning_.reset(), agreement_s_.reset();
}

void Programs::set_links(const Links& links) {
  links_ = links;
  forget();
}

void Programs::freeze(bool typical) {
  frozen_ = true;
  if (typical) links_ = typical_links(nodes_);
  forget();
}

std::map<Kind, Programs::Learnt> Programs::learnt() const {
  std::map<Kind, Learnt> all;
  for (const auto& [kind, tuning] : tunings_)
    all[kind] = {tuning->candidates(), tuning->both_ways(), tuning->coded_counts(), tuning->agreements(),
                 tuning->at(0)};
  return all;
}

void Programs::replay(std::map<Kind, Learnt> learnt) {
  replayed_ = std::move(learnt);
  forget();
}

}  // namespace gpucomm
