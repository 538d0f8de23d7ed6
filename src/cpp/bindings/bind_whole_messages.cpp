// The collectives whose message is one for all ranks, and the barrier.
#include <pybind11/stl.h>

#include "bindings/bind_communicator.h"
#include "bindings/coalesced.h"
#include "bindings/whole.h"

namespace py = pybind11;
using namespace py::literals;

namespace gpucomm {
namespace {

constexpr const char* kAllReduce =
    R"(Reduces x over all ranks; every rank gets the result, the same bits everywhere.

Args:
    x: an array of any shape that speaks DLPack, C-contiguous, in host memory or in a device's; float64/32/16,
        bfloat16, int8/16/32/64, uint8/16/32/64 or bool. Reduced in place unless `out` is given. Or a list or tuple
        of such arrays, alike on all ranks: small ones of one dtype travel together, in packs of at most 4 MiB,
        those of more than 1 MiB by themselves.
    op: "sum", "mean" (not of bool), "min", "max" or "prod"; "band", "bor" or "bxor" (no floats), bit by bit;
        of unsigned integers of 16 bits and more only "sum", "prod" and these; "premul_sum" (floats only), a
        sum of every rank's x times its own `scale`. float16 and bfloat16 are folded in float32. A sum of
        integers wraps, and so does their mean, before it divides: int8 100 and 100 give -28. A mean of float16
        divides last too, so partial sums on their way may be infinite; "premul_sum" with `scale` 1 / world
        divides first.
    out: where the result goes instead of x; same dtype and count, apart from x. Of a list a list.
    scale: the factor of this rank's x, for op "premul_sum" and no other; of all but float64 arrays it is
        rounded to float32. The products are rounded to x's dtype before anything is sent, in a pass of their
        own over x (or out, where it is given).
    algorithm: a name of gpucomm.algorithms(), or "auto": the cheapest on the measured links.
    segments: how finely the message is cut for pipelining; None or "auto": the cheapest.
    timeout: seconds until the call fails on every rank; None: the communicator's.
    stream: the handle of the stream (a cudaStream_t as int) that arrays in a device's memory are used on; None:
        the current one of their library where that tells, else the device's default stream. The call is
        ordered behind what the stream holds, and the stream waits for it; the host does not.
    async_op: return a Work at once; x and out must be left alone until it is done. Of a list a
        CoalescedWork, whose wait() also puts the results in place; packed arrays are held twice until then.
    codec: the spec of a codec (gpucomm.codecs.names()) in which elements travel; None: as they are. Floats and
        sums only. One that needs the largest magnitude of all ranks agrees on it first, in a call of its own.
        With max_rel_err the only one to consider.
    error: an array of x's dtype and count, apart from x and out, which gets what this rank's encodings lose in
        this call, in units of its x (for premul_sum of scale times x), and zeros elsewhere. Added to the next
        x (error feedback), nothing is lost for good. Given on all ranks or on none.

    max_rel_err: the result may differ from the exact sum by at most so many times the sum of the norms of the
        ranks' x: gpucomm picks the cheapest codec that keeps to it, or none. Then the call blocks, takes no
        algorithm, segments, async_op or error, nor float64, and returns a gpucomm.bounded.Bounded. On a device
        the cheapest is what makes the fewest bytes of x.

Returns:
    x or out; a Work if async_op.

Raises:
    InvalidArgumentError, UnsupportedTypeError: a bad argument; nothing was sent. Or, on every rank, an element
        that the codec refuses, which closes the communicator.
    UnavailableError: x is on a device that the ranks have no way between.
    MismatchError: the ranks did not make the same call.
    CollectiveTimeoutError, PeerLostError: the communicator is closed afterwards.
    ClosedError: it was closed before.)";

constexpr const char* kReduce = R"(Reduces x over all ranks onto one; the others' x is left as it is.

Args:
    x: as in all_reduce, a list too; the root's is overwritten unless it gives `out`.
    root: the rank that gets the result.
    op, out, algorithm, segments, timeout, async_op, stream: as in all_reduce (out: on the root only).
    scale: as in all_reduce; where x is left as it is, the products need memory of its size.

Returns:
    The result on the root, x elsewhere; a Work if async_op.

Raises:
    As all_reduce.)";

constexpr const char* kBroadcast = R"(Copies the root's x into every rank's x, or out.

Args:
    x: an array of the same dtype and count on all ranks; any dtype, complex64, complex128,
        float8_e4m3fn and float8_e5m2 too. Or a list or tuple of arrays, as in all_reduce. With `out` None will
        do on all ranks but the root.
    root: the rank whose x is sent.
    out: where the root's x goes on this rank, the root too, instead of into x; same dtype and count, apart
        from x. Of a list a list.
    algorithm, segments, timeout, async_op, stream: as in all_reduce.

Returns:
    x or out; a Work if async_op.

Raises:
    As all_reduce.)";

}  // namespace

void bind_whole_messages(py::class_<PyCommunicator>& type) {
  type.def(
          "all_reduce",
          [](PyCommunicator& c, Object x, Text op, Object out, Maybe scale, Text algorithm, Segments segments,
             const Timeout& timeout, bool async_op, Handle stream, std::optional<std::string> codec,
             Object error, Maybe max_rel_err) {
            if (max_rel_err)
              return bounded(c, x, *max_rel_err, "op"_a = op, "out"_a = out, "scale"_a = scale,
                             "algorithm"_a = algorithm, "segments"_a = pieces(c, segments),
                             "timeout"_a = seconds(c, timeout), "async_op"_a = async_op, "stream"_a = stream,
                             "codec"_a = codec, "error"_a = error);
            if (several(x))
              return coalesced(c, "all_reduce", x, "op"_a = op, "out"_a = out, "scale"_a = scale,
                               "algorithm"_a = algorithm, "segments"_a = pieces(c, segments),
                               "timeout"_a = seconds(c, timeout), "async_op"_a = async_op,
                               "stream"_a = stream, "codec"_a = codec, "error"_a = error);
            return c.located([&] {
              return c.all_reduce(x, op, out, scale,
                                  {algorithm, segments, timeout, async_op, stream, codec, error});
            });
          },
          "x"_a, "op"_a = "sum", py::kw_only(), "out"_a = py::none(), "scale"_a = py::none(),
          "algorithm"_a = "auto", "segments"_a = py::none(), "timeout"_a = py::none(), "async_op"_a = false,
          "stream"_a = py::none(), "codec"_a = py::none(), "error"_a = py::none(),
          "max_rel_err"_a = py::none(), kAllReduce)
      .def(
          "reduce",
          [](PyCommunicator& c, Object x, Whole root, Text op, Object out, Maybe scale, Text algorithm,
             Segments segments, const Timeout& timeout, bool async_op, Handle stream) {
            if (several(x))
              return coalesced(c, "reduce", x, "op"_a = op, "root"_a = rank_of(c, root), "out"_a = out,
                               "scale"_a = scale, "algorithm"_a = algorithm,
                               "segments"_a = pieces(c, segments), "timeout"_a = seconds(c, timeout),
                               "async_op"_a = async_op, "stream"_a = stream);
            return c.located([&] {
              return c.reduce(x, number_of("root", root), op, out, scale,
                              {algorithm, segments, timeout, async_op, stream});
            });
          },
          "x"_a, "root"_a = 0, "op"_a = "sum", py::kw_only(), "out"_a = py::none(), "scale"_a = py::none(),
          "algorithm"_a = "auto", "segments"_a = py::none(), "timeout"_a = py::none(), "async_op"_a = false,
          "stream"_a = py::none(), kReduce)
      .def(
          "broadcast",
          [](PyCommunicator& c, Object x, Whole root, Object out, Text algorithm, Segments segments,
             const Timeout& timeout, bool async_op, Handle stream) {
            if (several(x.is_none() ? out : x))
              return coalesced(c, "broadcast", x, "root"_a = rank_of(c, root), "out"_a = out,
                               "algorithm"_a = algorithm, "segments"_a = pieces(c, segments),
                               "timeout"_a = seconds(c, timeout), "async_op"_a = async_op,
                               "stream"_a = stream);
            return c.located([&] {
              return c.broadcast(x, number_of("root", root), out,
                                 {algorithm, segments, timeout, async_op, stream});
            });
          },
          "x"_a, "root"_a = 0, py::kw_only(), "out"_a = py::none(), "algorithm"_a = "auto",
          "segments"_a = py::none(), "timeout"_a = py::none(), "async_op"_a = false, "stream"_a = py::none(),
          kBroadcast)
      .def(
          "barrier",
          [](PyCommunicator& c, const Timeout& timeout, bool async_op) {
            return c.located([&] { return c.barrier(timeout, async_op); });
          },
          "timeout"_a = py::none(), py::kw_only(), "async_op"_a = false,
          R"(Returns when every rank has called it.

Args:
    timeout, async_op: as in all_reduce.

Raises:
    as all_reduce.)");
}

}  // namespace gpucomm
