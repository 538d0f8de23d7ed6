// How a message is divided among the ranks: rows of its first dimension.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "bindings/array.h"

namespace gpucomm {

using Counts = std::optional<std::vector<int64_t>>;  // rows per rank, as the caller gave them

struct Parts {
  int world = 1;
  int64_t each = 0;             // rows of every rank ...
  std::vector<int64_t> counts;  // ... or of each, where not empty
  size_t row = 1;               // elements of a row

  int64_t rows(int rank) const { return counts.empty() ? each : counts[rank]; }
  int64_t total_rows() const;
  size_t total() const { return total_rows() * row; }
  size_t count(int rank) const { return rows(rank) * row; }
  size_t begin(int rank) const;
  std::vector<size_t> elements() const;
  // The same, but nothing where all ranks have the same.
  std::vector<size_t> uneven() const;
};

int64_t rows_of(const Array& x);
size_t row_of(const Array& x);

// These throw invalid_argument: counts must be one per rank, not negative, and fit x.
Parts given(const std::vector<int64_t>& counts, const char* name, int world, size_t row);
// The parts of what is gathered from x of each rank, of the same rows everywhere unless counts says.
Parts joined(const Array& x, const Counts& counts, int world, int rank);
// The parts of an x that holds those of all ranks.
Parts divided(const Array& x, const Counts& counts, int world);

}  // namespace gpucomm
