// Blocks of shared memory as Python sees them, and the facts about the heap.
#include <cstring>

#include "base/cpus.h"
#include "base/memory_limits.h"
#include "bindings/bind_communicator.h"
#include "bindings/interpreter.h"
#include "transports/heap.h"
#include "transports/remote.h"

namespace py = pybind11;
using namespace py::literals;

namespace gpucomm {
namespace {

// What an array of gpucomm.empty stands on; any library that takes buffers can use it.
struct Block {
  std::shared_ptr<std::byte> memory;
  size_t bytes = 0;
};

std::shared_ptr<Heap> heap_of(PyCommunicator& communicator) {
  check_not_forked();
  Transport& transport = communicator.core().transport();
  if (auto heap = transport.heap()) return heap;
  fail(ErrorKind::unavailable, "there is no shared heap: ", transport.heap_note(), communicator.where());
}

py::dict heap_facts(PyCommunicator& communicator) {
  Transport& transport = communicator.core().transport();
  const auto heap = transport.heap();
  return py::dict("size_bytes"_a = heap ? heap->size() : 0, "used_bytes"_a = heap ? heap->used() : 0,
                  "memory_bytes"_a = heap ? heap->backed() : 0, "note"_a = transport.heap_note());
}

py::dict readers(PyCommunicator& communicator) {
  py::dict table;
  for (int rank = 0; rank < communicator.core().world(); ++rank)
    if (rank != communicator.core().rank())
      table[py::int_(rank)] = communicator.core().transport().reader(rank);
  return table;
}

}  // namespace

void bind_heap(py::module_& m, py::class_<PyCommunicator>& type) {
  m.def(
      "read_process",
      [](int64_t pid, uint64_t address, size_t nbytes) {
        std::string data(nbytes, 0);
        const int why = read_process(pid, address, data.data(), nbytes);
        return why ? py::object(py::str(concat("process_vm_readv: ", std::strerror(why))))
                   : py::object(py::bytes(data));
      },
      "pid"_a, "address"_a, "nbytes"_a,
      "Bytes of another process's memory, or a text why they cannot be read.");
  m.def("let_siblings_read", &let_siblings_read,
        "Lets the processes that its parent started read this process's memory, where Yama restricts that "
        "(as ranks do).");
  m.def(
      "small_page_speed",
      [] {
        const ReadSpeed& speed = small_page_speed();
        return py::make_tuple(speed.read, speed.copy, speed.quick());
      },
      "How many bytes a second the kernel reads of a process's memory on small pages, how many a copy makes, "
      "and\nwhether long private messages are therefore read from such pages.");
  m.def("last_level_cache", &last_level_cache,
        "Bytes of the last-level cache, as the kernel or GPUCOMM_LLC_MIB tells.");
  m.def(
      "memory_room",
      [](uint64_t enough, const std::string& root) {
        const auto [bytes, told_by] = MemoryLimits(root).room(enough);
        return py::make_tuple(bytes, told_by);
      },
      "enough"_a, "root"_a = "",
      "How many bytes of memory this process can still have by /proc/meminfo and its cgroups, at least "
      "`enough` or all\nof them, and which of these has the fewest. `root` comes before the paths of the "
      "kernel's files.");
  m.def(
      "memory_limit", [](const std::string& root) { return MemoryLimits(root).most(); }, "root"_a = "",
      "Bytes that the cgroups of this process may have in all; beyond 2**62 where they have no limit.");
  py::class_<Block>(m, "Block", py::buffer_protocol(), "A piece of this rank's shared heap.")
      .def_buffer([](Block& block) {
        return py::buffer_info(reinterpret_cast<uint8_t*>(block.memory.get()),
                               static_cast<py::ssize_t>(block.bytes));
      })
      .def_property_readonly(
          "address", [](const Block& b) { return reinterpret_cast<uintptr_t>(b.memory.get()); },
          "Where it begins.")
      .def_property_readonly("nbytes", [](const Block& b) { return b.bytes; }, "Its size.");
  type.def(
          "heap_block",
          [](PyCommunicator& c, size_t nbytes) {
            const auto heap = heap_of(c);
            try {
              const Released released;  // the machine may have to find the memory
              return Block{heap->allocate(nbytes), nbytes};
            } catch (const Error& error) {
              throw Error(error.kind, error.what() + c.where());
            }
          },
          "nbytes"_a,
          "Memory that the ranks of this node share, as a buffer; gpucomm.empty makes arrays of it. It lives "
          "as long\nas anything that refers to it, beyond close().")
      .def_property_readonly("readers", &readers,
                             "Which ranks read long messages out of this one's private memory (cross-memory "
                             "attach): rank -> \"\",\nor why it does not. They find out at their first call.")
      .def_property_readonly("heap", &heap_facts,
                             "This rank's shared heap: size_bytes, used_bytes, memory_bytes (taken from the "
                             "machine), and a\nnote why there is none.");
}

}  // namespace gpucomm
