# NCCL's types are declared by ourselves and its library is found at run time. Where its header is found, and
# CUDA's, which it includes, this object compares the two; it is part of nothing.
find_path(NCCL_INCLUDE nccl.h HINTS ENV NCCL_HOME PATH_SUFFIXES include)
find_path(CUDA_INCLUDE cuda_runtime.h HINTS ENV CUDA_HOME /usr/local/cuda PATH_SUFFIXES include)
mark_as_advanced(NCCL_INCLUDE CUDA_INCLUDE)
if(NCCL_INCLUDE AND CUDA_INCLUDE)
  add_library(nccl_values OBJECT src/cpp/devices/guard/nccl_values.cpp)
  target_include_directories(nccl_values PRIVATE src/cpp)
  target_include_directories(nccl_values SYSTEM PRIVATE ${NCCL_INCLUDE} ${CUDA_INCLUDE})
endif()
