#include "bindings/bind.h"

PYBIND11_MODULE(_core, m) {
  m.doc() = "The C++ core of gpucomm; private: use the names of the package gpucomm.";
  m.attr("version") = GPUCOMM_VERSION;
  gpucomm::bind_errors(m);
  gpucomm::bind_plans(m);
  gpucomm::bind_reduce(m);
  gpucomm::bind_codecs(m);
  gpucomm::bind_wires(m);
  gpucomm::bind_devices(m);
  gpucomm::bind_nccl(m);
  gpucomm::bind_choose(m);
  gpucomm::bind_work(m);
  gpucomm::bind_communicator(m);
  gpucomm::bind_hot_path(m);
  gpucomm::bind_packs(m);
  gpucomm::bind_limit(m);
}
