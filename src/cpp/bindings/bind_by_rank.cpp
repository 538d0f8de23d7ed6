#include <pybind11/stl.h>

#include "bindings/bind_communicator.h"
#include "bindings/coalesced.h"
#include "bindings/whole.h"

namespace py = pybind11;
using namespace py::literals;

namespace gpucomm {
namespace {

constexpr const char* kAllGather =
    R"(Concatenates every rank's x along the first dimension, in rank order, on all ranks.

Args:
    x: an array of shape (n, ...) and any dtype, alike on all ranks; a 0-d one counts as shape (1,). Or a
        list or tuple of such arrays, of which small ones travel together, as in all_reduce.
    out: where the result goes, world times as many elements; x may be this rank's part of it (in place).
        None: a new array of x's library, for JAX of NumPy.
    counts: the first extent of every rank's x where these differ, alike on all ranks.
    algorithm, segments, timeout, async_op, stream, codec: as in all_reduce.

Returns:
    An array of shape (world * n, ...), or (sum(counts), ...), of a list a list of those; a Work if async_op.

Raises:
    As all_reduce; MismatchError also where the ranks give other counts.)";

constexpr const char* kReduceScatter =
    R"(Reduces x over all ranks and leaves the rank-th part of the result on each.

Args:
    x: an array of shape (world * n, ...), alike on all ranks; left as it is.
    op: as in all_reduce.
    out: where this rank's part goes, count / world elements; it may be that part of x (in place).
        None: a new array of x's library, for JAX of NumPy.
    scale: as in all_reduce; the products need memory of x's size.
    counts: how many of x's first dimension go to each rank where not world times the same, alike on all
        ranks.
    algorithm, segments, timeout, async_op, stream, codec, error: as in all_reduce.

Returns:
    An array of shape (n, ...), or (counts[rank], ...); a Work if async_op.

Raises:
    As all_gather.)";

constexpr const char* kGather =
    R"(Concatenates every rank's x along the first dimension, in rank order, on one rank.

Args:
    x: as in all_gather.
    root: the rank that gets the result.
    out: as in all_gather, on the root only.
    counts: as in all_gather.
    algorithm, segments, timeout, async_op, stream: as in all_reduce.

Returns:
    On the root an array as all_gather's, elsewhere None; a Work if async_op.

Raises:
    As all_gather.)";

constexpr const char* kScatter = R"(Cuts the root's x along the first dimension and gives each rank its part.

Args:
    x: on the root an array of shape (world * n, ...) and any dtype. Elsewhere it is not read: None, or an
        array of the same shape and dtype that tells what comes.
    root: the rank whose x is cut.
    out: where this rank's part goes; the root's may be that part of x (in place). None: a new array of x's
        library. Needed where x is None.
    algorithm, segments, timeout, async_op, stream: as in all_reduce.

Returns:
    An array of shape (n, ...); a Work if async_op.

Raises:
    As all_reduce.)";

constexpr const char* kAllToAll =
    R"(Sends part j of x to rank j; part j of the result is what rank j sent here.

Args:
    x: an array of shape (world * n, ...) and any dtype, alike on all ranks; left as it is.
    out: where the result goes, as many elements as x; x itself (in place), or apart from it. None: a new
        array of x's library.
    counts: how many of x's first dimension go to each rank, where not world times the same; every rank its
        own. Then x and out must be apart, and all ranks must give counts or out_counts.
    out_counts: how many come from each rank, in the first dimension of the result. None with counts given:
        the ranks tell each other first, in a small call of its own that is waited for, async_op or not.
    algorithm, segments, timeout, async_op, stream: as in all_reduce.

Returns:
    An array of x's shape, or (sum(out_counts), ...); a Work if async_op.

Raises:
    As all_reduce; MismatchError also where a rank sends another number than its peer expects.)";

}  // namespace

void bind_by_rank(py::class_<PyCommunicator>& type) {
  type.def(
          "all_gather",
          [](PyCommunicator& c, Object x, Object out, const Wholes& counts, Text algorithm, Segments segments,
             const Timeout& timeout, bool async_op, Handle stream, std::optional<std::string> codec) {
            if (several(x))
              return coalesced(c, "all_gather", x, "out"_a = out, "counts"_a = counts,
                               "algorithm"_a = algorithm, "segments"_a = pieces(c, segments),
                               "timeout"_a = seconds(c, timeout), "async_op"_a = async_op,
                               "stream"_a = stream, "codec"_a = codec);
            return c.located([&] {
              return c.all_gather(x, out, counts_of("counts", counts),
                                  {algorithm, segments, timeout, async_op, stream, codec});
            });
          },
          "x"_a, py::kw_only(), "out"_a = py::none(), "counts"_a = py::none(), "algorithm"_a = "auto",
          "segments"_a = py::none(), "timeout"_a = py::none(), "async_op"_a = false, "stream"_a = py::none(),
          "codec"_a = py::none(), kAllGather)
      .def(
          "reduce_scatter",
          [](PyCommunicator& c, Object x, Text op, Object out, Maybe scale, const Wholes& counts,
             Text algorithm, Segments segments, const Timeout& timeout, bool async_op, Handle stream,
             std::optional<std::string> codec, Object error) {
            return c.located([&] {
              return c.reduce_scatter(x, op, out, scale, counts_of("counts", counts),
                                      {algorithm, segments, timeout, async_op, stream, codec, error});
            });
          },
          "x"_a, "op"_a = "sum", py::kw_only(), "out"_a = py::none(), "scale"_a = py::none(),
          "counts"_a = py::none(), "algorithm"_a = "auto", "segments"_a = py::none(),
          "timeout"_a = py::none(), "async_op"_a = false, "stream"_a = py::none(), "codec"_a = py::none(),
          "error"_a = py::none(), kReduceScatter)
      .def(
          "gather",
          [](PyCommunicator& c, Object x, Whole root, Object out, const Wholes& counts, Text algorithm,
             Segments segments, const Timeout& timeout, bool async_op, Handle stream) {
            return c.located([&] {
              return c.gather(x, number_of("root", root), out, counts_of("counts", counts),
                              {algorithm, segments, timeout, async_op, stream});
            });
          },
          "x"_a, "root"_a = 0, py::kw_only(), "out"_a = py::none(), "counts"_a = py::none(),
          "algorithm"_a = "auto", "segments"_a = py::none(), "timeout"_a = py::none(), "async_op"_a = false,
          "stream"_a = py::none(), kGather)
      .def(
          "scatter",
          [](PyCommunicator& c, Object x, Whole root, Object out, Text algorithm, Segments segments,
             const Timeout& timeout, bool async_op, Handle stream) {
            return c.located([&] {
              return c.scatter(x, number_of("root", root), out,
                               {algorithm, segments, timeout, async_op, stream});
            });
          },
          "x"_a, "root"_a = 0, py::kw_only(), "out"_a = py::none(), "algorithm"_a = "auto",
          "segments"_a = py::none(), "timeout"_a = py::none(), "async_op"_a = false, "stream"_a = py::none(),
          kScatter)
      .def(
          "all_to_all",
          [](PyCommunicator& c, Object x, Object out, const Wholes& counts, const Wholes& out_counts,
             Text algorithm, Segments segments, const Timeout& timeout, bool async_op, Handle stream) {
            return c.located([&] {
              return c.all_to_all(x, out, counts_of("counts", counts), counts_of("out_counts", out_counts),
                                  {algorithm, segments, timeout, async_op, stream});
            });
          },
          "x"_a, py::kw_only(), "out"_a = py::none(), "counts"_a = py::none(), "out_counts"_a = py::none(),
          "algorithm"_a = "auto", "segments"_a = py::none(), "timeout"_a = py::none(), "async_op"_a = false,
          "stream"_a = py::none(), kAllToAll);
}

}  // namespace gpucomm
