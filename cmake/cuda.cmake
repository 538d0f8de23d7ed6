# _cuda, the second extension: src/cpp/cuda, where a working nvcc is found. The CUDA runtime is linked statically
# and finds the driver when first called, so that the module imports on machines without one.

# Sets CMAKE_CUDA_COMPILER to an nvcc that can compile, and MISSING to why there is none.
macro(gpucomm_find_nvcc)
  set(MISSING "")
  if(NOT CMAKE_CUDA_COMPILER)
    if(NOT DEFINED ENV{CUDACXX})
      find_program(GPUCOMM_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
      if(GPUCOMM_NVCC)
        set(ENV{CUDACXX} "${GPUCOMM_NVCC}")
      endif()
    endif()
    unset(CMAKE_CUDA_COMPILER CACHE) # NOTFOUND of an earlier time
    include(CheckLanguage)
    check_language(CUDA)
  endif()
  if(CMAKE_CUDA_COMPILER)
    execute_process(COMMAND ${CMAKE_CUDA_COMPILER} --version OUTPUT_VARIABLE NVCC_TEXT ERROR_QUIET)
    string(REGEX REPLACE ".*release ([0-9.]+).*" "\\1" NVCC_VERSION "${NVCC_TEXT}")
    if(NVCC_VERSION VERSION_LESS 12.0)
      set(MISSING "${CMAKE_CUDA_COMPILER} is of version ${NVCC_VERSION}, but 12.0 is the oldest that compiles C++20")
    endif()
  elseif(DEFINED ENV{CUDACXX})
    set(MISSING "$ENV{CUDACXX} does not compile a test program; CMakeFiles/CMakeConfigureLog.yaml says why")
  else()
    set(MISSING "no nvcc was found by CUDACXX, CUDA_HOME, PATH or in /usr/local/cuda")
  endif()
endmacro()

# Before the language is enabled: it takes whatever list it finds. The last architecture also as PTX, for later GPUs.
macro(gpucomm_choose_architectures)
  if(GPUCOMM_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES "${GPUCOMM_CUDA_ARCHITECTURES}")
  elseif(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
    if(NVCC_VERSION VERSION_GREATER_EQUAL 13.0)
      set(CMAKE_CUDA_ARCHITECTURES 75-real 80-real 86-real 90-real 100-real 120)
    elseif(NVCC_VERSION VERSION_GREATER_EQUAL 12.8)
      set(CMAKE_CUDA_ARCHITECTURES 70-real 75-real 80-real 86-real 90-real 100-real 120)
    else()
      set(CMAKE_CUDA_ARCHITECTURES 70-real 75-real 80-real 86-real 90)
    endif()
  endif()
endmacro()

function(gpucomm_add_cuda)
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  find_package(CUDAToolkit REQUIRED)
  file(GLOB CUDA_SOURCES CONFIGURE_DEPENDS src/cpp/cuda/*.cu src/cpp/cuda/*.cpp)
  pybind11_add_module(_cuda NO_EXTRAS ${CUDA_SOURCES} src/cpp/bindings/bind_errors.cpp)
  target_include_directories(_cuda PRIVATE src/cpp)
  list(JOIN CMAKE_CUDA_ARCHITECTURES " " ARCHITECTURES)
  target_compile_definitions(_cuda PRIVATE GPUCOMM_VERSION="${SKBUILD_PROJECT_VERSION}"
                                           GPUCOMM_ARCHITECTURES="${ARCHITECTURES}")
  # The same bits as on the host: no contraction.
  target_compile_options(_cuda PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wno-missing-field-initializers -ffp-contract=off>
    "$<$<COMPILE_LANGUAGE:CUDA>:--fmad=false;-Xfatbin=-compress-all;--threads=2;-Xcompiler=-Wall,-Wno-unknown-pragmas,-ffp-contract=off>")
  target_link_libraries(_cuda PRIVATE CUDA::cudart_static Threads::Threads ${CMAKE_DL_LIBS})
  install(TARGETS _cuda LIBRARY DESTINATION gpucomm)
endfunction()
