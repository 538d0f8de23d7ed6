#include "bindings/parts.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <string>

#include "base/error.h"

namespace gpucomm {

int64_t Parts::total_rows() const {
  return counts.empty() ? each * world : std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

size_t Parts::begin(int rank) const {
  if (counts.empty()) return each * rank * row;
  return std::accumulate(counts.begin(), counts.begin() + rank, int64_t{0}) * row;
}

std::vector<size_t> Parts::elements() const {
  std::vector<size_t> all;
  for (int rank = 0; rank < world; ++rank) all.push_back(count(rank));
  return all;
}

std::vector<size_t> Parts::uneven() const {
  const bool even = std::all_of(counts.begin(), counts.end(), [&](int64_t n) { return n == counts[0]; });
  return even || !row ? std::vector<size_t>() : elements();
}

int64_t rows_of(const Array& x) { return x.shape().empty() ? 1 : x.shape()[0]; }

size_t row_of(const Array& x) {
  size_t row = 1;
  for (size_t i = 1; i < x.shape().size(); ++i) row *= x.shape()[i];
  return row;
}

Parts given(const std::vector<int64_t>& counts, const char* name, int world, size_t row) {
  if (counts.size() != static_cast<size_t>(world))
    fail(ErrorKind::invalid_argument, name, " must have one entry per rank, ", world, "; got ",
         counts.size());
  int64_t total = 0, bytes = 0;  // of the largest elements
  for (size_t rank = 0; rank < counts.size(); ++rank) {
    if (counts[rank] < 0)
      fail(ErrorKind::invalid_argument, name, " must not be negative, got ", counts[rank], " for rank ",
           rank);
    if (__builtin_add_overflow(total, counts[rank], &total) ||
        __builtin_mul_overflow(total, row * 16, &bytes))
      fail(ErrorKind::invalid_argument, name, " add up to more than any memory holds");
  }
  return {world, 0, counts, row};
}

Parts joined(const Array& x, const Counts& counts, int world, int rank) {
  if (!counts) return {world, rows_of(x), {}, row_of(x)};
  const Parts parts = given(*counts, "counts", world, row_of(x));
  if (parts.rows(rank) != rows_of(x))
    fail(ErrorKind::invalid_argument, "counts must hold the first extent of x at this rank's place, ",
         rows_of(x), "; got ", parts.rows(rank));
  return parts;
}

static std::string text(std::span<const int64_t> shape) {
  std::string out = "(";
  for (int64_t n : shape) out += (out.size() > 1 ? ", " : "") + std::to_string(n);
  return out + ")";
}

Parts divided(const Array& x, const Counts& counts, int world) {
  if (!counts) {
    if (rows_of(x) % world)
      fail(ErrorKind::invalid_argument, "the first extent of x must be a multiple of the world, ", world,
           "; got shape ", text(x.shape()));
    return {world, rows_of(x) / world, {}, row_of(x)};
  }
  const Parts parts = given(*counts, "counts", world, row_of(x));
  if (parts.total_rows() != rows_of(x))
    fail(ErrorKind::invalid_argument, "counts must add up to the first extent of x, ", rows_of(x),
         "; they give ", parts.total_rows());
  return parts;
}

}  // namespace gpucomm
