// What algorithm="auto" has learnt, as plain lists and dicts.
#include <pybind11/stl.h>

#include "bindings/bind_communicator.h"
#include "bindings/names.h"
#include "bindings/texts.h"

namespace py = pybind11;
using namespace py::literals;

namespace gpucomm {
namespace {

py::list rows_of(const std::map<Kind, Programs::Learnt>& learnt) {
  py::list rows;
  for (const auto& [kind, what] : learnt) {
    py::list candidates;
    for (const Choice& c : what.candidates)
      candidates.append(
          py::dict("algorithm"_a = c.algorithm, "segments"_a = c.segments, "predicted_s"_a = c.cost_s));
    rows.append(py::dict("collective"_a = name_of(static_cast<Collective>(kind.collective)),
                         "most_bytes"_a = most_bytes(kind), "width"_a = kind.width,
                         "segments_asked"_a = kind.segments, "root"_a = kind.root, "codec"_a = kind.codec,
                         "tells_error"_a = kind.tells_error, "candidates"_a = candidates,
                         "both_ways"_a = what.both_ways, "coded_counts"_a = what.coded_counts,
                         "agreements"_a = what.agreements, "algorithm"_a = what.taken.algorithm,
                         "segments"_a = what.taken.segments,
                         "private_arrays"_a = kPrivateWayNames[static_cast<int>(what.taken.way)]));
  }
  return rows;
}

std::pair<Kind, Programs::Learnt> learnt_of(const py::handle& row) {
  Programs::Learnt what;
  const auto collective =
      parse<Collective>("collective", row["collective"].cast<std::string>(), kCollectiveNames);
  for (const py::handle c : row["candidates"]) {
    what.candidates.push_back(
        {c["algorithm"].cast<std::string>(), c["segments"].cast<int>(), c["predicted_s"].cast<double>()});
    build_plan(what.candidates.back().algorithm, PlanRequest{collective});  // throws what is wrong with it
  }
  if (what.candidates.empty()) fail(ErrorKind::invalid_argument, "a row of the log has no candidates");
  what.both_ways = row["both_ways"].cast<bool>();
  what.coded_counts = row["coded_counts"].cast<double>();
  what.agreements = row["agreements"].cast<Tuning::Agreements>();
  return {Kind{.collective = static_cast<int>(collective),
               .width = row["width"].cast<int>(),
               .algorithm = "auto",
               .segments = row["segments_asked"].cast<int>(),
               .root = row["root"].cast<int>(),
               .codec = row["codec"].cast<std::string>(),
               .tells_error = row["tells_error"].cast<bool>()},
          std::move(what)};
}

std::map<Kind, Programs::Learnt> all_learnt_of(const py::object& rows) {
  if (!py::isinstance<py::iterable>(rows))
    fail(ErrorKind::invalid_argument, "rows must be what comm.tuning() returned, got ", shown(rows));
  std::map<Kind, Programs::Learnt> learnt;
  const auto damaged = [](const py::handle& row, const char* why) {
    fail(ErrorKind::invalid_argument, "this is no row of comm.tuning(): ", shown(row), " (", why, ")");
  };
  for (const py::handle row : rows) {
    try {
      auto [kind, what] = learnt_of(row);
      learnt[std::move(kind)] = std::move(what);
    } catch (const py::error_already_set& error) {
      if (!error.matches(PyExc_Exception)) throw;
      damaged(row, error.what());
    } catch (const py::cast_error& error) {
      damaged(row, error.what());
    }
  }
  return learnt;
}

}  // namespace

void bind_tuning(py::class_<PyCommunicator>& type) {
  type.def(
          "tuning", [](PyCommunicator& c) { return rows_of(c.core().learnt()); },
          R"(What algorithm="auto" has learnt; the same on every rank.

Returns:
    A row for each kind of call: its collective, size (most_bytes, a power of two of `width` bits), root,
    segments_asked for (0: none), codec, and whether it has an `error` (tells_error). Of that the candidates
    with their predicted times, the times that the ranks have agreed on (agreements: seconds, a list for each,
    in the order of the candidates at that time; the first 65,536), and the algorithm and segments taken now.
    both_ways: those that are left when they are few are tried with private arrays staged, then with these read
    where they lie; private_arrays: how they go now ("rule": as a rule of thumb says, "staged", "attached").
    coded_counts: times that what loses bits must be faster than what does not.)")
      .def(
          "replay",
          [](PyCommunicator& c, const py::object& rows) {
            c.core().replay(c.located([&] { return all_learnt_of(rows); }));
          },
          "rows"_a,
          R"(Lets algorithm="auto" decide as another run did, by the times that its ranks agreed on.

Forgets what was learnt here. Every rank must call it with the same rows at the same point of its calls, the
first of which for the same bits as there. Where the rows end, learning goes on.

Args:
    rows: what tuning() returned there.

Raises:
    InvalidArgumentError: a row has no candidates, an unknown collective, or is none of tuning()'s.)");
}

}  // namespace gpucomm
