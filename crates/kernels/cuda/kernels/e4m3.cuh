// e4m3: fp8 with 4 bits of exponent. Elements are values times a scale.

#define MAX_E4M3 448.0f

// Two e4m3 in one register, the first in the low byte. Rounds to nearest even and saturates; NaN stays NaN.
// Kernels that call it are not launched on GPUs without the instruction.
DEVICE u32 e4m3_pair(float low, float high) {
#if ON_HIP || __CUDA_ARCH__ < 890
    return 0;
#else
    u16 bits;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(bits) : "f"(high), "f"(low));
    return bits;
#endif
}

DEVICE u32 e4m3_quad(float a, float b, float c, float d) { return e4m3_pair(a, b) | e4m3_pair(c, d) << 16; }

// Largest magnitudes below it are 0: the reciprocal of their scale would overflow.
#define MIN_MAGNITUDE 1e-30f

// The scale of elements with this largest magnitude: their values become at most MAX_E4M3.
DEVICE float fp8_scale(float max) { return max >= MIN_MAGNITUDE ? max / MAX_E4M3 : 1.0f; }
