// The interpreter's lock, left to others.
#pragma once

#include <Python.h>
#include <unistd.h>

namespace octavo {

// The caller, who has the lock, is without it while this lives.
class Unlocked {
public:
    Unlocked() : state_(PyEval_SaveThread()) {}
    // Where the interpreter has ended meanwhile, as a daemon thread finds it, Python before 3.14 ends the thread by unwinding its
    // stack, which no destructor lets pass: the process would be aborted. The thread stops here instead, as it does in later ones.
    ~Unlocked() {
        try {
            PyEval_RestoreThread(state_);
        } catch (...) {
            for (;;) ::pause();
        }
    }
    Unlocked(const Unlocked&) = delete;
    Unlocked& operator=(const Unlocked&) = delete;

private:
    PyThreadState* const state_;
};

} // namespace octavo
