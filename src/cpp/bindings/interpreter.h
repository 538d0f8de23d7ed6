// What the interpreter and its process may do to calls that wait: signals, its end, fork.
#pragma once
#include <pybind11/pybind11.h>
#include <unistd.h>

namespace gpucomm {

// True in a child of fork: a communicator does not survive that.
bool forked();
void check_not_forked();

// Runs the handlers of signals; whether one of them raised.
bool interrupted();

// Whether the interpreter is ending: threads that ask for the GIL then are ended where they stand.
inline bool finalizing() {
#if PY_VERSION_HEX >= 0x030d0000
  return Py_IsFinalizing();
#else
  return _Py_IsFinalizing();
#endif
}

// Without the GIL; and for ever, where the interpreter has ended meanwhile: there is nothing to go back to.
// Python before 3.14 ends a thread that waits for the GIL then, by unwinding its stack: past destructors,
// this one too, which ends the process.
class Released {
 public:
  Released() : ends_(finalizing()), state_(PyEval_SaveThread()) {}
  Released(const Released&) = delete;
  ~Released() {
    while (finalizing() && !ends_) ::pause();
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {
      for (;;) ::pause();
    }
  }

 private:
  const bool ends_;  // this very thread ends the interpreter: it had the GIL when that was ending
  PyThreadState* state_;
};

}  // namespace gpucomm
