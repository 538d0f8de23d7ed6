// Functions whose one text is compiled for the host and, under nvcc, for the device too.
#pragma once

#ifdef __CUDACC__
#define GPUCOMM_BOTH __host__ __device__
#else
#define GPUCOMM_BOTH
#endif
