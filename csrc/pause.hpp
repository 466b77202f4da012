// Between two looks at what another thread is to write.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace octavo {

inline void pause() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

} // namespace octavo
