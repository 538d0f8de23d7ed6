// Codecs, for tests and for gpucomm.codecs.
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <optional>

#include "base/float_mode.h"
#include "bindings/array.h"
#include "bindings/bind.h"
#include "bindings/interpreter.h"
#include "bindings/names.h"
#include "codecs/codec.h"
#include "codecs/coding.h"

namespace py = pybind11;
using namespace py::literals;

namespace gpucomm {
namespace {

using Bytes = py::array_t<uint8_t, py::array::c_style>;

struct PyCodec {
  std::shared_ptr<const Codec> codec;
};

// The dtype of the array, or the named one, of the same size: bits of what NumPy does not know, as bfloat16.
Dtype dtype_of(const Array& array, const std::optional<std::string>& name) {
  if (!name) return array.dtype();
  const Dtype dtype = parse_dtype(*name);
  if (size_of(dtype) != size_of(array.dtype()))
    fail(ErrorKind::invalid_argument, "dtype ", *name, " has another size than the elements of the array, ",
         name_of(array.dtype()));
  return dtype;
}

// Returns (bytes written, error).
std::pair<size_t, CodecError> encode_into(const Codec& codec, const Array& x, Dtype dtype, std::byte* out,
                                          bool measured) {
  const Released release;
  const StandardFloats floats;
  CodecError error;
  const size_t written = codec.encode(x.data(), x.count(), dtype, out, measured ? &error : nullptr);
  return {written, error};
}

Bytes encode(const PyCodec& self, py::handle object, const std::optional<std::string>& name) {
  const Array x(object, "x");
  const Dtype dtype = dtype_of(x, name);
  Bytes out(self.codec->max_bytes(x.count(), dtype));
  auto* bytes = reinterpret_cast<std::byte*>(out.mutable_data());
  const size_t written = encode_into(*self.codec, x, dtype, bytes, false).first;
  if (!self.codec->traits().fixed_size) out.resize({written});
  return out;
}

size_t encode_to(const PyCodec& self, py::handle object, py::handle target,
                 const std::optional<std::string>& name) {
  const Array x(object, "x"), out(target, "out");
  const Dtype dtype = dtype_of(x, name);
  check_writable(out, "out");
  if (out.bytes() < self.codec->max_bytes(x.count(), dtype))
    fail(ErrorKind::invalid_argument, "out has ", out.bytes(), " bytes, codec ", self.codec->spec(),
         " may need ", self.codec->max_bytes(x.count(), dtype));
  return encode_into(*self.codec, x, dtype, out.data(), false).first;
}

std::pair<double, double> error_of(const PyCodec& self, py::handle object,
                                   const std::optional<std::string>& name) {
  const Array x(object, "x");
  const Dtype dtype = dtype_of(x, name);
  std::vector<std::byte> coded(self.codec->max_bytes(x.count(), dtype));
  const CodecError error = encode_into(*self.codec, x, dtype, coded.data(), true).second;
  return {error.max_abs, error.sum_sq};
}

template <void (Codec::*call)(const std::byte*, size_t, size_t, Dtype, std::byte*) const>
void decode_to(const PyCodec& self, py::handle coded, py::handle target,
               const std::optional<std::string>& name) {
  const Array in(coded, "coded"), out(target, "out");
  const Dtype dtype = dtype_of(out, name);
  check_writable(out, "out");
  const Released release;
  const StandardFloats floats;
  ((*self.codec).*call)(in.data(), in.bytes(), out.count(), dtype, out.data());
}

void add(const PyCodec& self, py::handle coded, py::handle target) {
  const Array in(coded, "coded"), into(target, "into");
  check_writable(into, "into");
  if (in.bytes() != into.bytes())
    fail(ErrorKind::invalid_argument, "coded has ", in.bytes(), " bytes, into has ", into.bytes());
  const Released release;
  self.codec->add(in.data(), in.bytes(), into.data());
}

py::dict traits(const PyCodec& self) {
  const CodecTraits& traits = self.codec->traits();
  return py::dict("lossy"_a = traits.lossy, "additive"_a = traits.additive,
                  "fixed_size"_a = traits.fixed_size, "bound"_a = kBoundNames[static_cast<int>(traits.bound)],
                  "block"_a = traits.block, "needs_maximum"_a = traits.needs_maximum,
                  "keeps_nan"_a = traits.keeps_nan, "keeps_infinity"_a = traits.keeps_infinity);
}

py::dict registered() {
  py::dict codecs;
  for (const auto& [name, entry] : Registry<CodecEntry>::all())
    codecs[py::str(name)] = py::dict("summary"_a = entry.summary, "usage"_a = entry.usage,
                                     "examples"_a = entry.examples, "bounded"_a = entry.bounded);
  return codecs;
}

}  // namespace

void bind_codecs(py::module_& m) {
  m.def("codecs", &registered,
        "Every codec: summary, usage, examples, and the specs among which a bound on the error chooses.");
  py::class_<PyCodec>(m, "Codec", "Elements to bytes and back.")
      .def(py::init([](const std::string& spec) { return PyCodec{parse_codec(spec)}; }), "spec"_a)
      .def_property_readonly("spec", [](const PyCodec& c) { return c.codec->spec(); })
      .def_property_readonly("kind", [](const PyCodec& c) { return c.codec->kind(); })
      .def_property_readonly("traits", &traits)
      .def(
          "takes",
          [](const PyCodec& c, const std::string& dtype) { return c.codec->takes(parse_dtype(dtype)); },
          "dtype"_a)
      .def(
          "max_bytes",
          [](const PyCodec& c, size_t count, const std::string& dtype) {
            return c.codec->max_bytes(count, parse_dtype(dtype));
          },
          "count"_a, "dtype"_a = "float32")
      .def(
          "bytes_a_byte", [](const PyCodec& c) { return smallest(c.codec, 1)->bytes_a_byte(Dtype::float32); },
          "Coded bytes for a byte of a long message of float32; at least, where they depend on the elements.")
      .def("encode", &encode, "x"_a, "dtype"_a = py::none(), "Returns the coded bytes, a uint8 array.")
      .def("encode_to", &encode_to, "x"_a, "out"_a, "dtype"_a = py::none(),
           "Returns the bytes written to out.")
      .def("decode", &decode_to<&Codec::decode>, "coded"_a, "out"_a, "dtype"_a = py::none())
      .def("decode_add", &decode_to<&Codec::decode_add>, "coded"_a, "accumulator"_a, "dtype"_a = py::none())
      .def("add", &add, "coded"_a, "into"_a)
      .def("error", &error_of, "x"_a, "dtype"_a = py::none(),
           "What encode loses of x: the largest error, and the sum of their squares.")
      .def(
          "agreed",
          [](const PyCodec& c, double max_abs, int world) {
            return PyCodec{c.codec->agreed(max_abs, world)};
          },
          "max_abs"_a, "world"_a)
      .def(
          "speed", [](const PyCodec& c) { return time_coding(*smallest(c.codec, 1), Dtype::float32); },
          py::call_guard<Released>(),
          "Seconds that a byte of float32 takes to encode and to decode, measured now.")
      .def(
          "bound",
          [](const PyCodec& c, double block_max, const std::string& dtype) {
            return c.codec->bound(block_max, parse_dtype(dtype));
          },
          "block_max"_a, "dtype"_a = "float32");
}

}  // namespace gpucomm
