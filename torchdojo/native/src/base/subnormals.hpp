// Numbers below 2.2e-308 count as zero on the thread of such an object while it lives.
//
// Gradients by variables that hardly matter fade over a long rollout by a factor in each step, for instance out of the plane of planar
// robots. A processor takes a hundred times as long for numbers that small: backward through 1000 steps of half-cheetah would take six
// times as long.
#pragma once

#include <cstdint>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace torchdojo {

class SubnormalsAreZero {
public:
    SubnormalsAreZero() : before(control()) { control(before | flush); }
    ~SubnormalsAreZero() { control(before); }
    SubnormalsAreZero(const SubnormalsAreZero &) = delete;
    SubnormalsAreZero &operator=(const SubnormalsAreZero &) = delete;

private:
#if defined(__SSE2__)
    using Register = unsigned int;
    static constexpr Register flush = 0x8040;  // results (FTZ) and operands (DAZ)
    static Register control() { return _mm_getcsr(); }
    static void control(Register value) { _mm_setcsr(value); }
#elif defined(__aarch64__)
    using Register = uint64_t;
    static constexpr Register flush = Register(1) << 24;  // FZ: both
    static Register control() {
        Register value;
        asm volatile("mrs %0, fpcr" : "=r"(value));
        return value;
    }
    static void control(Register value) { asm volatile("msr fpcr, %0" : : "r"(value)); }
#else
    using Register = int;
    static constexpr Register flush = 0;
    static Register control() { return 0; }
    static void control(Register) {}
#endif
    const Register before;
};

}  // namespace torchdojo
