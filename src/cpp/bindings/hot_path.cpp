// The collectives, parsed here: pybind11's dispatcher takes as long as a short message.
// What is unusual goes the way of all other calls, as messages do, which are here for what is refused.
#include <array>

#include "bindings/bind.h"
#include "bindings/coalesced.h"
#include "bindings/interpreter.h"
#include "bindings/misfit.h"
#include "bindings/plain_values.h"
#include "bindings/texts.h"
#include "bindings/whole.h"

namespace py = pybind11;

namespace gpucomm {
namespace {

// Names of keywords are interned: the same name is the same object.
struct Names {
  PyObject* op = PyUnicode_InternFromString("op");
  PyObject* root = PyUnicode_InternFromString("root");
  PyObject* out = PyUnicode_InternFromString("out");
  PyObject* scale = PyUnicode_InternFromString("scale");
  PyObject* algorithm = PyUnicode_InternFromString("algorithm");
  PyObject* segments = PyUnicode_InternFromString("segments");
  PyObject* timeout = PyUnicode_InternFromString("timeout");
  PyObject* async_op = PyUnicode_InternFromString("async_op");
  PyObject* codec = PyUnicode_InternFromString("codec");
  PyObject* counts = PyUnicode_InternFromString("counts");
  PyObject* stream = PyUnicode_InternFromString("stream");
};
const Names& known() {
  static const Names names;
  return names;
}

struct Call {
  py::object x, out = py::none();
  Text op = "sum";
  std::optional<int> root = 0;
  Factor scale{};
  Counts counts{};
  Options options{.algorithm = "auto"};
};

struct Method {
  const char* name;
  // Which of these it takes; root, else op, may come behind x by its place.
  bool x = true, op = false, root = false, out = true, codec = false, counts = false;
  // Of a message: where the rank that it goes to stands behind self, and the one that it comes from.
  Py_ssize_t to = 0, source = 0;
  py::object (*run)(PyCommunicator&, const Call&) = nullptr;  // null: of a message
  PyObject* usual = nullptr;                                  // pybind11's own
  std::string doc{};
  PyMethodDef definition{};

  std::string signature() const { return doc.substr(0, doc.find('\n')); }
};

std::array<Method, 12> methods{{
    {.name = "barrier", .x = false, .out = false, .run = [](auto& c, auto&) { return c.barrier({}, false); }},
    {.name = "all_reduce",
     .op = true,
     .codec = true,
     .run = [](auto& c,
               auto& call) { return c.all_reduce(call.x, call.op, call.out, call.scale, call.options); }},
    {.name = "reduce_scatter",
     .op = true,
     .codec = true,
     .counts = true,
     .run =
         [](auto& c, auto& call) {
           return c.reduce_scatter(call.x, call.op, call.out, call.scale, call.counts, call.options);
         }},
    {.name = "all_gather",
     .codec = true,
     .counts = true,
     .run = [](auto& c, auto& call) { return c.all_gather(call.x, call.out, call.counts, call.options); }},
    {.name = "broadcast",
     .root = true,
     .run = [](auto& c, auto& call) { return c.broadcast(call.x, *call.root, call.out, call.options); }},
    {.name = "reduce",
     .op = true,
     .root = true,
     .run =
         [](auto& c, auto& call) {
           return c.reduce(call.x, *call.root, call.op, call.out, call.scale, call.options);
         }},
    {.name = "gather",
     .root = true,
     .counts = true,
     .run = [](auto& c,
               auto& call) { return c.gather(call.x, *call.root, call.out, call.counts, call.options); }},
    {.name = "scatter",
     .root = true,
     .run = [](auto& c, auto& call) { return c.scatter(call.x, *call.root, call.out, call.options); }},
    {.name = "all_to_all",
     .run = [](auto& c, auto& call) { return c.all_to_all(call.x, call.out, {}, {}, call.options); }},
    {.name = "send", .to = 1},
    {.name = "recv", .source = 1},
    {.name = "sendrecv", .to = 1, .source = 3},
}};

bool take_named(const Method& method, PyObject* name, PyObject* value, Call& call) {
  const Names& names = known();
  if (name == names.algorithm) return take(value, call.options.algorithm);
  if (name == names.segments) return take(value, call.options.segments);
  if (name == names.timeout) return take(value, call.options.timeout_s);
  if (name == names.async_op) return take(value, call.options.async_op);
  if (name == names.stream) return take(value, call.options.stream);
  if (name == names.codec)
    return method.codec && (value == Py_None || take(value, call.options.codec.emplace()));
  if (name == names.counts) return method.counts && take(value, call.counts);
  if (name == names.scale) return method.op && take(value, call.scale);
  if (name == names.op) return method.op && take(value, call.op);
  if (name == names.root) return method.root && value != Py_None && take(value, call.root);
  if (name != names.out || !method.out) return false;
  call.out = py::reinterpret_borrow<py::object>(value);
  return true;
}

bool parse(const Method& method, PyObject* const* args, Py_ssize_t count, PyObject* names, Call& call) {
  if (!method.x) return count == 0 && !names;
  if (count < 1 || count > 2) return false;
  call.x = py::reinterpret_borrow<py::object>(args[0]);
  if (several(call.x)) return false;
  PyObject* second = method.root ? known().root : known().op;
  if (count == 2 && !take_named(method, second, args[1], call)) return false;
  for (Py_ssize_t i = 0; names && i < PyTuple_GET_SIZE(names); ++i) {
    PyObject* name = PyTuple_GET_ITEM(names, i);
    const bool again = count == 2 && name == second;
    if (again || !take_named(method, name, args[count + i], call)) return false;
  }
  return !(call.x.is_none() && several(call.out));
}

// So begins what pybind11 says of arguments that fit no signature.
std::string misfit(const Method& method) { return concat(method.name, "(): incompatible"); }

// Calls of this thread that go the usual way, which may make others: of this communicator the outermost tells
// what is wrong.
struct UnderWay {
  explicit UnderWay(PyObject* self) : self_(self) { innermost_ = this; }
  UnderWay(const UnderWay&) = delete;
  ~UnderWay() { innermost_ = outer_; }
  static bool has(PyObject* self) {
    const UnderWay* call = innermost_;
    while (call && call->self_ != self) call = call->outer_;
    return call;
  }

 private:
  static thread_local UnderWay* innermost_;
  PyObject* const self_;
  UnderWay* const outer_ = innermost_;
};
thread_local UnderWay* UnderWay::innermost_ = nullptr;

PyObject* go_the_usual_way(const Method& method, PyObject* self, PyObject* const* args, Py_ssize_t count,
                           PyObject* names) {
  const Given given{args, count, names};
  if (given.misnamed()) {  // one that is no UTF-8 pybind11 could not tell of
    PyErr_SetString(PyExc_TypeError, misfit(method).c_str());
    return nullptr;
  }
  std::vector<PyObject*> all{self};
  all.insert(all.end(), args, args + count + given.named());
  const UnderWay this_one(self);
  return PyObject_Vectorcall(method.usual, all.data(), count + 1, names);
}

// pybind11's cast looks its type up, which takes as long as all else here. A descriptor has found that self
// is a Communicator; which of its bases is one is clear where there are no others.
PyCommunicator& communicator_of(PyObject* self) {
  const auto* instance = reinterpret_cast<const py::detail::instance*>(self);
  if (instance->simple_layout && instance->simple_value_holder[0])
    return *static_cast<PyCommunicator*>(instance->simple_value_holder[0]);
  return py::cast<PyCommunicator&>(py::handle(self));
}

// The result, or null with Python's exception set.
PyObject* run(const Method& method, PyObject* self, PyObject* const* args, Py_ssize_t count,
              PyObject* names) {
  if (!method.run) return go_the_usual_way(method, self, args, count, names);
  Call call;
  if (!parse(method, args, count, names, call)) return go_the_usual_way(method, self, args, count, names);
  try {
    auto& c = communicator_of(self);
    return c.located([&] { return method.run(c, call); }).release().ptr();
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const Error& error) {
    raise(error);
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

// What pybind11 says of arguments that fit no signature has all of the arrays in it. Whether it was that.
bool say_types(const Method& method, PyObject* self, const Given& given, py::error_already_set& error) {
  const std::string begin = misfit(method);
  if (!error.matches(PyExc_TypeError) || first_line(error.value(), begin.size()) != begin) return false;
  const auto& c = communicator_of(self);
  raise(Error(ErrorKind::unsupported_type, concat(method.name, " does not take (", given.text(), "); it is ",
                                                  method.signature(), c.where())));
  error = py::error_already_set();
  return true;
}

// The rank that an argument of a message names; -1: none does.
int peer(const PyCommunicator& c, PyObject* rank) {
  const auto number = rank ? whole(rank) : std::nullopt;
  return number && *number >= 0 && *number < c.core().world() ? static_cast<int>(*number) : -1;
}

void refuse_message(const Method& method, PyCommunicator& c, const Given& given, const std::string& said) {
  const Error error(ErrorKind::unsupported_type, said);
  const int source = method.source ? peer(c, given.find("source", method.source)) : -1;
  if (method.to)
    c.refuse_message(true, peer(c, given.find("to", method.to)), error, source);
  else
    c.refuse_message(false, source, error);
}

// Tells the other ranks, which may wait in the call, what is wrong with it here, whatever a library's array
// has raised. After a fault there is nobody to be told.
void refuse(const Method& method, PyObject* self, const Given& given, const py::error_already_set& error,
            bool misfit) {
  constexpr size_t kEnough = 300;  // with the call's name it fits what is told
  if (forked() || !error.matches(PyExc_Exception)) return;
  auto& c = communicator_of(self);
  if (method.run)
    c.core().refuse(method.name, said_by(error, kEnough));
  else if (misfit)  // all else the message itself has told
    refuse_message(method, c, given, said_by(error, kEnough));
}

template <size_t kIndex>
PyObject* called(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  PyObject* result = run(methods[kIndex], self, args, count, names);
  if (!result && !UnderWay::has(self)) {
    py::error_already_set error;  // takes it
    try {
      const Given given{args, count, names};
      const bool misfit = say_types(methods[kIndex], self, given, error);
      refuse(methods[kIndex], self, given, error, misfit);
    } catch (const std::exception&) {  // the call's own error says more
    }
    error.restore();
  }
  return result;
}

template <size_t kIndex>
void hasten(const py::type& communicator) {
  Method& method = methods[kIndex];
  method.usual = py::object(communicator.attr(method.name)).release().ptr();
  method.doc = py::str(py::handle(method.usual).attr("__doc__"));
  method.definition = {method.name,
                       reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(called<kIndex>)),
                       METH_FASTCALL | METH_KEYWORDS, method.doc.c_str()};
  auto* type = reinterpret_cast<PyTypeObject*>(communicator.ptr());
  communicator.attr(method.name) =
      py::reinterpret_steal<py::object>(PyDescr_NewMethod(type, &method.definition));
}

}  // namespace

void bind_hot_path(py::module_& m) {
  m.def(
      "shown", [](py::handle value) { return shown(value); }, py::arg("value"),
      "The first line of its repr(), for error texts, or its type where it has none; never fails.");
  m.def("whole", &whole, py::arg("given"),
        "The whole number that it is: of what has an __index__ and is no bool; None of all else,\n"
        "and of what 64 bits do not hold.");
  m.def(
      "hasten",
      []<size_t... kIndices>(std::index_sequence<kIndices...>) {
        return [](const py::type& communicator) { (hasten<kIndices>(communicator), ...); };
      }(std::make_index_sequence<methods.size()>()),
      py::arg("communicator"), "Gives a subclass of Communicator collectives that are quicker to call.");
}

}  // namespace gpucomm
