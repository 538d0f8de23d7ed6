// What a call's messages tell of it, so that calls that do not fit each other are found.
#include <cstring>

#include "base/hash.h"
#include "engine/label.h"
#include "engine/program.h"

namespace gpucomm {

// Of all_to_all with uneven counts the ranks agree on that and no more.
static uint64_t digest_of_counts(const Shape& shape) {
  if (shape.pack) return shape.pack;
  if (shape.counts.empty()) return 0;
  if (!shape.out_counts.empty()) return 1;
  uint64_t hash = 0;
  for (size_t n : shape.counts) hash = mix(hash, n);
  return hash;
}

// Whole: names that differ behind what was cut off would be taken for alike.
template <size_t kSize>
static void write(std::array<char, kSize>& field, const std::string& name) {
  GPUCOMM_CHECK(name.size() < kSize);
  std::memcpy(field.data(), name.c_str(), name.size());
}

CallRecord make_record(const Shape& shape) {
  CallRecord record;
  if (shape.before) {  // which tells more
    record = make_record(*shape.before);
    record.purpose = static_cast<uint16_t>(Purpose::preparation);
    return record;
  }
  record.count = shape.part_of ? shape.part_of : shape.out_counts.empty() ? shape.count : 0;
  record.counts = digest_of_counts(shape);
  record.root = shape.root, record.segments = shape.segments;
  record.collective = static_cast<uint8_t>(shape.collective);
  record.op = static_cast<uint8_t>(shape.op), record.dtype = static_cast<uint8_t>(shape.dtype);
  record.in_use = 1, record.purpose = static_cast<uint16_t>(shape.purpose);
  record.on_device = place_of(shape);
  write(record.algorithm, shape.algorithm);
  if (const Codec* codec = shape.codec ? shape.codec.get() : shape.asked.get())
    write(record.codec, codec->spec());
  return record;
}

static uint64_t digest_of(const CallRecord& record) {
  uint64_t words[CallRecord::kWords] = {};
  std::memcpy(words, &record, sizeof record);
  uint64_t hash = 0;
  for (uint64_t word : words) hash = mix(hash, word);
  return hash;
}

// Of what comes before another call, of both: their messages lie in memory of their own sizes.
uint64_t fingerprint_of(const Shape& shape) {
  const uint64_t hash = digest_of(make_record(shape));
  if (!shape.before) return hash;
  Shape own = shape;
  own.before.reset();
  return mix(hash, digest_of(make_record(own)));
}

uint64_t tag_of(uint64_t fingerprint, uint64_t sequence) { return mix(fingerprint, sequence); }

CallRecord tagged(const Program& program, uint64_t sequence, uint64_t label) {
  CallRecord record = program.record;
  record.sequence = sequence, record.tag = tag_of(program.fingerprint, sequence), record.label = label;
  if (label) record.tag = mix(record.tag, label);
  return record;
}

std::string unfitting_counts(const Program& program, int peer, const CallRecord& record, uint64_t sent) {
  return concat("counts and out_counts do not fit: rank ", program.rank, " of ", program.world, " expects ",
                program.shape.out_counts[peer], " elements from rank ", peer, " in ", describe(record),
                ", which sends ", sent);
}

std::string describe(const CallRecord& r) {
  const auto purpose = static_cast<Purpose>(r.purpose);
  if (purpose == Purpose::barrier) return concat("barrier #", r.sequence);
  if (purpose == Purpose::agreement) return concat("agreement #", r.sequence, " on measured times");
  if (purpose == Purpose::way) return concat("agreement #", r.sequence, " on how arrays on a device travel");
  const auto collective = static_cast<Collective>(r.collective);
  const bool prepares = purpose == Purpose::preparation;
  std::string text = prepares ? "the preparation of " : "";
  if (purpose >= kFirstComposed)
    text = concat(kComposed[r.purpose - static_cast<int>(kFirstComposed)], "'s ");
  text += concat(name_of(collective), " #", r.sequence, " (");
  if (reduces(collective)) text += concat(name_of(static_cast<Op>(r.op)), " of ");
  const bool unknown = collective == Collective::all_to_all && r.counts;
  text += unknown ? "uneven" : std::to_string(r.count);
  text += concat(" ", name_of(static_cast<Dtype>(r.dtype)));
  if (r.counts && !unknown)
    text += concat(by_rank(collective) ? " in uneven counts of digest " : " packed of arrays of digest ",
                   std::hex, r.counts >> 32, std::dec);
  if (rooted(collective)) text += concat(", root ", r.root);
  if (r.on_device) text += ", on a device";
  if (r.on_device > 1) text += r.on_device == 2 ? " over NCCL" : " through host memory";
  if (r.label) text += concat(", ", Label::text(r.label));
  if (r.codec[0]) text += concat(", codec ", r.codec.data());
  text += concat(", algorithm ", r.algorithm.data());
  if (prepares) return text + ")";
  return text + concat(", ", r.segments, r.segments == 1 ? " segment)" : " segments)");
}

}  // namespace gpucomm
