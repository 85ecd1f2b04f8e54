// What hipRTC has built in, as far as the kernels use it, so that clang compiles the kernels without ROCm.
// Names and signatures follow hip/amd_detail of ROCm/clr (amd_warp_functions.h, amd_device_functions.h,
// amd_hip_vector_types.h) and the macros in hipamd/src/hiprtc/cmake/HIPRTC.cmake. Builtins stand in for the
// device libraries, so that the register usage is close to hipRTC's. The objects are never linked or run.

#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
#define __align__(n) __attribute__((aligned(n)))
#define __forceinline__ inline __attribute__((always_inline))
#define BOUNDS_1(threads) __attribute__((amdgpu_flat_work_group_size(1, threads)))
#define BOUNDS_2(threads, waves)                                                                       \
    __attribute__((amdgpu_flat_work_group_size(1, threads), amdgpu_waves_per_eu(waves)))
#define SELECT_BOUNDS(_1, _2, name, ...) name
#define __launch_bounds__(...) SELECT_BOUNDS(__VA_ARGS__, BOUNDS_2, BOUNDS_1)(__VA_ARGS__)
#define INLINE static __device__ __forceinline__

struct float2 { float x, y; };
struct __align__(16) float4 { float x, y, z, w; };
struct __align__(8) uint2 { unsigned x, y; };
struct __align__(16) uint4 { unsigned x, y, z, w; };
INLINE float2 make_float2(float x, float y) { return {x, y}; }
INLINE float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
INLINE uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
INLINE uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

// Properties as in clang's __clang_hip_runtime_wrapper.h and HIP's headers: `threadIdx.x` is a call.
#define INDEX(name, of_x, of_y)                                                                        \
    struct name##_t {                                                                                  \
        __declspec(property(get = get_x)) unsigned x;                                                  \
        __declspec(property(get = get_y)) unsigned y;                                                  \
        __device__ unsigned get_x() const { return of_x; }                                             \
        __device__ unsigned get_y() const { return of_y; }                                             \
    };                                                                                                 \
    static constexpr name##_t name = {}
INDEX(threadIdx, __builtin_amdgcn_workitem_id_x(), __builtin_amdgcn_workitem_id_y());
INDEX(blockIdx, __builtin_amdgcn_workgroup_id_x(), __builtin_amdgcn_workgroup_id_y());
INDEX(blockDim, __builtin_amdgcn_workgroup_size_x(), __builtin_amdgcn_workgroup_size_y());
INDEX(gridDim, __builtin_amdgcn_grid_size_x() / __builtin_amdgcn_workgroup_size_x(),
      __builtin_amdgcn_grid_size_y() / __builtin_amdgcn_workgroup_size_y());

INLINE float __int_as_float(int x) { return __builtin_bit_cast(float, x); }
INLINE float __uint_as_float(unsigned x) { return __builtin_bit_cast(float, x); }
INLINE unsigned __float_as_uint(float x) { return __builtin_bit_cast(unsigned, x); }
INLINE int min(int x, int y) { return x < y ? x : y; }
INLINE int max(int x, int y) { return x > y ? x : y; }

INLINE void __syncthreads() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
__device__ int __syncthreads_or(int);
__device__ int __syncthreads_count(int);

INLINE int __shfl_xor(int x, int mask, int) {
    int lane = __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0));
    return __builtin_amdgcn_ds_bpermute((lane ^ mask) << 2, x);
}
INLINE unsigned __shfl_xor(unsigned x, int mask, int width) { return __shfl_xor((int)x, mask, width); }
INLINE float __shfl_xor(float x, int mask, int width) {
    return __builtin_bit_cast(float, __shfl_xor(__builtin_bit_cast(int, x), mask, width));
}
INLINE double __shfl_xor(double x, int mask, int width) {
    struct Halves { int low, high; } halves = __builtin_bit_cast(Halves, x);
    halves.low = __shfl_xor(halves.low, mask, width);
    halves.high = __shfl_xor(halves.high, mask, width);
    return __builtin_bit_cast(double, halves);
}
template <class T> INLINE T atomicAdd(T* to, T x) {
    return __hip_atomic_fetch_add(to, x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
INLINE unsigned atomicAdd(unsigned* to, int x) { return atomicAdd(to, (unsigned)x); }

INLINE float expf(float x) { return __builtin_expf(x); }
INLINE float exp2f(float x) { return __builtin_exp2f(x); }
INLINE float logf(float x) { return __builtin_logf(x); }
INLINE float sqrtf(float x) { return __builtin_sqrtf(x); }
INLINE float fmaxf(float x, float y) { return __builtin_fmaxf(x, y); }
INLINE float fabsf(float x) { return __builtin_fabsf(x); }
INLINE float fmaf(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
INLINE double sqrt(double x) { return __builtin_sqrt(x); }
INLINE double fmax(double x, double y) { return __builtin_fmax(x, y); }
INLINE double rint(double x) { return __builtin_rint(x); }
// Only in the device libraries.
extern "C" __device__ void sincospif(float, float*, float*);
extern "C" __device__ double exp(double);
extern "C" __device__ double exp2(double);
extern "C" __device__ double log(double);
