// A libcuda.so.1 that has no GPU: FAKE_DRIVER is the version it tells, FAKE_INIT what cuInit returns. Says on
// stderr that it was initialised.
#include <cstdio>
#include <cstdlib>
#include <cstring>

extern "C" {

int cuDriverGetVersion(int* version) {
  *version = std::atoi(std::getenv("FAKE_DRIVER"));
  return 0;
}

int cuInit(unsigned) {
  std::fputs("cuInit\n", stderr);
  return std::atoi(std::getenv("FAKE_INIT"));
}

int cuGetExportTable(const void**, const void*) { return 100; }

int cuDeviceGetCount(int* count) {
  *count = 0;
  return 0;
}

static int nothing() { return 100; }  // no device

int cuGetProcAddress_v2(const char* name, void** function, int, unsigned long long, int* found) {
  const auto is = [&](const char* other) { return std::strcmp(name, other) == 0; };
  *function = reinterpret_cast<void*>(nothing);
  if (is("cuDriverGetVersion")) *function = reinterpret_cast<void*>(cuDriverGetVersion);
  if (is("cuInit")) *function = reinterpret_cast<void*>(cuInit);
  if (is("cuGetProcAddress")) *function = reinterpret_cast<void*>(cuGetProcAddress_v2);
  if (is("cuGetExportTable")) *function = reinterpret_cast<void*>(cuGetExportTable);
  if (is("cuDeviceGetCount")) *function = reinterpret_cast<void*>(cuDeviceGetCount);
  if (found) *found = 0;
  return 0;
}

}  // extern "C"
